"""The Kubernetes CronJob calls the command as it is."""

from pathlib import Path

import yaml

from multigate.verbs.command import make_parser

CRONJOB = Path(__file__).parents[2] / "deploy/cronjob.yaml"


def test_the_cronjob_runs_a_night():
    spec = yaml.safe_load(CRONJOB.read_text())["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    job = spec["jobTemplate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    options = make_parser().parse_args(container["args"])
    assert options.verb == "run"
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    for used in (options.config, str(options.data), str(options.out)):
        assert any(used == path or used.startswith(f"{path}/") for path in mounted), used
    volumes = {volume["name"] for volume in job["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    # What another pod would not change is not tried again.
    (rule,) = (rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob")
    assert rule["onExitCodes"]["values"] == [2]
    assert rule["onExitCodes"]["containerName"] == container["name"]
