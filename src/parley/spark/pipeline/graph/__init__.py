"""The declarative pipeline, as `spark-pipelines` runs it: a copy of this folder is made beside its tables."""
