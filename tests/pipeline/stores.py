"""What the tests of jobs with stores do: write a configuration, fetch all files of an address."""

from pathlib import Path

import yaml

from multigate.configs import Config
from multigate.configs.storage import Address


def write_config(config: Config, folder: Path) -> Path:
    """A configuration as a file of a folder."""
    path = folder / "model.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    return path


def download(address: Address, folder: Path) -> Path:
    """All files below an address."""
    for name, file in address.files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        file.download(folder / name)
    return folder
