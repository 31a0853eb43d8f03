"""The manifests and the image: flags that exist, times that fit, and no training code."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from multigate.serving.client import probe
from multigate.serving.core.options import ServerOptions, add_arguments, from_arguments
from multigate.serving.observe.exporter import PATH

ROOT = Path(__file__).parents[2]
DEPLOYMENT, SERVICE, BUDGET = yaml.safe_load_all((ROOT / "deploy" / "server.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]
(SERVER,) = POD["spec"]["containers"]
SERVICES = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
COMPOSE = SERVICES["server"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVING = DOCKERFILE.partition("AS serving\n")[2].partition("\nFROM ")[0]
SUPERVISORS_MARGIN = 10  # seconds, after which workers are killed


def options_of(arguments, environment):
    """The server's options, parsed as `multigate serve` does."""
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return from_arguments(parser.parse_args(arguments))


def deployed():
    environment = {one["name"]: one["value"] for one in SERVER["env"]}
    return options_of(SERVER["args"], environment)


def test_the_deployments_flags_are_the_servers():
    options = deployed()
    assert isinstance(options, ServerOptions)
    ports = {port["name"]: port["containerPort"] for port in SERVER["ports"]}
    served = {"grpc": options.port, "metrics": options.metrics_port, "rest": options.rest_api_port}
    assert ports == served
    mounts = {mount["mountPath"]: mount for mount in SERVER["volumeMounts"]}
    assert str(options.model_base_path).startswith("/runs/")
    assert mounts["/runs"]["readOnly"]
    annotations = POD["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(options.metrics_port)


def test_probes_tell_liveness_from_readiness():
    probes = {name: SERVER[f"{name}Probe"]["grpc"] for name in ("startup", "liveness", "readiness")}
    port = deployed().port
    assert probes["liveness"] == probes["startup"] == {"port": port, "service": "liveness"}
    assert probes["readiness"] == {"port": port}


def test_a_pod_has_the_time_to_drain():
    options = deployed()
    asleep = SERVER["lifecycle"]["preStop"]["sleep"]["seconds"]
    readiness = SERVER["readinessProbe"]
    # New calls stop coming before the server refuses them.
    assert asleep >= readiness["periodSeconds"] * readiness["failureThreshold"]
    drained = options.drain_delay_seconds + options.drain_grace_seconds + SUPERVISORS_MARGIN
    assert POD["spec"]["terminationGracePeriodSeconds"] >= asleep + drained


def test_the_service_sets_no_variable_that_the_server_reads():
    """Kubernetes would set MULTIGATE_PORT=tcp://... for a Service of that name."""
    assert SERVICE["metadata"]["name"] == "multigate"
    assert POD["spec"]["enableServiceLinks"] is False


def test_service_and_budget_select_the_pods():
    labels = POD["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    assert SERVICE["spec"]["selector"] == labels
    assert BUDGET["spec"]["selector"]["matchLabels"] == labels
    ports = {port["targetPort"]: port["port"] for port in SERVICE["spec"]["ports"]}
    assert ports == {port["name"]: port["containerPort"] for port in SERVER["ports"]}


def test_nothing_runs_as_root_or_writes_its_image():
    assert POD["spec"]["securityContext"]["runAsNonRoot"]
    security = SERVER["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert set(SERVER["resources"]["limits"]) == {"memory"}


def test_copies_from_a_store_go_where_a_pod_may_write():
    """The servers' of versions, and the nightly run's of logs and examples."""
    cronjob = yaml.safe_load((ROOT / "deploy" / "cronjob.yaml").read_text())
    nightly = cronjob["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    for pod in (POD["spec"], nightly):
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        scratch = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        places = [
            mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in scratch
        ]
        variables = {one["name"]: one["value"] for one in container["env"]}
        assert str(Path(variables["MULTIGATE_CACHE"]).parent) in places


@pytest.mark.parametrize("store", ["version", "redis://redis:6379/0"])
def test_the_compose_file_serves_what_it_says(store):
    command = [re.sub(r"\$\{FEATURE_STORE:-version\}", store, one) for one in COMPOSE["command"]]
    options = options_of(command, COMPOSE["environment"])
    assert options.feature_store == store
    published = [port.rsplit(":", 2) for port in COMPOSE["ports"]]
    assert published == [
        ["127.0.0.1", str(port), str(port)]
        for port in (options.port, options.metrics_port, options.rest_api_port)
    ]
    assert str(options.model_base_path).startswith("/models/")
    grace = int(COMPOSE["stop_grace_period"].removesuffix("s"))
    assert grace >= options.drain_delay_seconds + options.drain_grace_seconds
    assert COMPOSE["build"] == {"context": "..", "target": "serving"}


def test_the_compose_file_watches_the_server():
    """Services find each other by name and port."""
    monitoring = ROOT / "deploy" / "monitoring"
    (job,) = yaml.safe_load((monitoring / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"server:{deployed().metrics_port}"]}]
    assert job["metrics_path"] == POD["metadata"]["annotations"]["prometheus.io/path"] == PATH
    provisioning = monitoring / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/multigate.yaml").read_text())[
        "providers"
    ]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/multigate.json" in mounted


@pytest.fixture(scope="module")
def compose(go_module, go_build, tmp_path_factory):
    """Have Docker's own Compose read a text as the compose file; it needs no engine for that."""
    program = go_build(go_module("github.com/docker/compose/v2", "2.40.3"), "./cmd")
    home = tmp_path_factory.mktemp("home")  # nobody's settings

    def read(text, **variables):
        folder = ("--project-directory", ROOT / "deploy")
        return subprocess.run(
            [program, *folder, "--file", "-", "config", "--format", "json"],
            input=text,
            env={"HOME": str(home)} | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    return read


@pytest.mark.long  # the default tests read it as YAML
@pytest.mark.timeout(1800)  # Compose has to be built
def test_docker_reads_the_compose_file(compose):
    text = (ROOT / "deploy" / "compose.yaml").read_text()
    done = compose(text)
    assert (done.returncode, done.stderr) == (0, "")  # it would warn of a variable without a value
    services = json.loads(done.stdout)["services"]
    assert set(services) == set(SERVICES)
    mounts = [mount for service in services.values() for mount in service.get("volumes", [])]
    (models,) = [mount for mount in mounts if mount["target"] == "/models"]
    # Its folder is the user's: Docker must not make an empty one of root's where it is absent.
    assert models["source"] == str(ROOT / "models")
    assert not models["bind"].get("create_host_path", False)
    for mount in mounts:
        assert mount["type"] == "volume" or mount is models or Path(mount["source"]).exists(), mount
    for name, service in services.items():
        assert None not in service.get("environment", {}).values(), name
        assert {port["host_ip"] for port in service["ports"]} == {"127.0.0.1"}, name
        # No service waits for a check of health that another does not have.
        conditions = {one["condition"] for one in service.get("depends_on", {}).values()}
        assert conditions <= {"service_started"}, name
    build = services["server"]["build"]
    assert f" AS {build['target']}\n" in Path(build["context"], build["dockerfile"]).read_text()
    given = json.loads(compose(text, MODELS="/elsewhere", FEATURE_STORE="redis://r:1/0").stdout)
    server = given["services"]["server"]
    assert [mount["source"] for mount in server["volumes"]] == ["/elsewhere"]
    assert "--feature_store=redis://r:1/0" in server["command"]
    # It would notice: names that nothing has, a key and values that are none.
    for right, wrong in (
        ("depends_on: [redis]", "depends_on: [cache]"),
        ("- prometheus:/prometheus", "- metrics:/prometheus"),
        ("mem_limit:", "memory_limit:"),
        ("stop_grace_period: 30s", "stop_grace_period: 30seconds"),
        ("127.0.0.1:9090:9090", "127.0.0.1:90900:9090"),
    ):
        assert text.count(right) == 1
        assert compose(text.replace(right, wrong)).returncode, wrong
    assert "not set" in compose(text.replace("${MODELS:-../models}", "${MODELS}")).stderr


def test_the_serving_image_carries_no_training_code():
    copied = re.findall(r"^COPY (\S+)", SERVING, re.MULTILINE)
    assert sorted(copied) == [
        *(
            "configs",
            "explanation",
            "features",
            "requirements-serving.lock",
            "runtime",
            "serving",
            "src/multigate/*.py",
            "verbs",
        ),
    ]
    lock = (ROOT / "requirements-serving.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9._-]+)==", lock, re.MULTILINE))
    assert {"grpcio", "tensorflow", "tensorflow-serving-api", "pyarrow", "redis"} <= locked
    assert not locked & {"keras", "tf-keras", "apache-beam", "polars", "jax", "scikit-learn"}


WITHOUT = """
import sys
ours = [f"multigate.{name}" for name in ("jobs", "model", "pipeline", "candidates")]
sys.modules.update(dict.fromkeys([*ours, "keras", "polars", "apache_beam"]))
from multigate.verbs.command import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_images_verbs_need_nothing_that_it_lacks(running):
    command = [
        *("rank", "--target", running.target, "--model", "small", "--timeout", "60"),
        *("--user", '{"user_id": "u"}', "--context", '{"hour": 1}'),
        *("--items", "i1,i2", "--columns", '{"length": [1, 2]}'),
    ]
    ranked = run_without(command)
    assert ranked.returncode == 0, ranked.stderr
    assert "small, version 1" in ranked.stdout
    refused = run_without(["serve", "--model_name", "x", "--model_base_path", "absent"])
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: absent: expected a folder of versions"), refused.stderr


def run_without(command):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def test_the_images_health_check(running, capsys):
    assert '"multigate.serving.client.probe"' in SERVING
    target = ["--target", running.target, "--timeout", "60"]
    assert probe.main(target) == 0
    assert probe.main([*target, "--service", "liveness"]) == 0
    assert capsys.readouterr().out == "SERVING\nSERVING\n"
    assert probe.main([*target, "--service", "x"]) == 1
    assert "NOT_FOUND" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        probe.main(["--unknown"])
