"""One YAML file for each data set that multigate knows; `--config NAME` takes one."""
