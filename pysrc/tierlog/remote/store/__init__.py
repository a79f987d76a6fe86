"""The object store seam and its stores: files, S3, GCS and Azure, HDFS."""
