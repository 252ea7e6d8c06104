"""What keeps a table in shape, each as a plan that changes nothing until its `commit()`."""
