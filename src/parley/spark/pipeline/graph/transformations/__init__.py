"""One module for each layer. `spark-pipelines` imports them while its session is the active one."""
