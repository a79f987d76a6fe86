"""The `ObjectStore` protocol and its stores: local files, S3, GCS, Azure, HDFS and memory."""
