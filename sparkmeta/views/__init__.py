"""Views: named queries over tables and other views."""
