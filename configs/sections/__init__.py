"""The sections of a configuration file, one typed and frozen class each.

Public face: the classes that `configs.config.Config` is made of, and `base.parse` and
`base.read_yaml`, which turn YAML into them with readable errors.
"""
