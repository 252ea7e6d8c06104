"""Read and write manifests in all formats: Avro, Parquet of the v1 to v3 layout, trees and cached leaves."""
