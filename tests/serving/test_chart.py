"""The Helm chart: rendered, it is the manifests of deploy/, and what Kubernetes accepts."""

import itertools
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from multigate.verbs.command import make_parser

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
CHART = ROOT / "deploy" / "chart"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
KUBERNETES, OPERATOR = "1.31.0", "0.85.0"
EVERYTHING = {
    "server": {
        "tokenSecret": "tokens",
        "args": ["--feature_store=redis://redis:6379/0"],
        "env": [{"name": "MULTIGATE_LOG_FORMAT", "value": "json"}],
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "ranking", "operator": "Exists"}],
    },
    "nightly": {
        "config": "contract: {user: user_id}\n",
        "args": ["--accept", "max_row_drop"],
        "affinity": {"nodeAffinity": {}},
    },
    "impressions": {"claim": "shown"},
    "autoscaling": {"enabled": True, "callsInFlight": 5},
    "serviceMonitor": {"enabled": True, "labels": {"release": "operator"}},
    "alerts": {"enabled": True},
    "dashboard": {"enabled": True},
    "tools": {"enabled": True, "shown": "name: shown\n"},
}


def by_name(text):
    """Objects by kind and name."""
    objects = [one for one in yaml.safe_load_all(text) if one is not None]
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def paths(values, before=""):
    """Every place in the values, leaves and what holds them; lists and open objects are leaves."""
    for key, value in values.items():
        path = f"{before}.{key}"
        yield path
        if isinstance(value, dict) and key not in ("resources", "labels"):
            yield from paths(value, path)


def test_templates_use_the_values_that_there_are_and_all_of_them():
    """Without Helm: a template's `with .Values.x` makes `.y` the value x.y."""
    named, inner = set(), set()
    for template in (CHART / "templates").glob("*.yaml"):
        text = template.read_text()
        named |= {f".{path}" for path in re.findall(r"\.Values\.([\w.]+)", text)}
        blocks = re.findall(r"\{\{-? with \.Values\.(\w+)", text)
        names = re.findall(r"(?<![\w$\"])\.([a-z]\w+(?:\.[a-z]\w+)*)", text)
        if "multigate.placement" in text:
            names += ["nodeSelector", "tolerations", "affinity"]
        inner |= {f".{block}.{name}" for block in blocks for name in names}
    known = set(paths(VALUES))
    assert named <= known
    leaves = {path for path in known if not any(other.startswith(f"{path}.") for other in known)}
    assert leaves <= named | inner


def test_the_charts_version_is_the_projects():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == version
    assert VALUES["server"]["image"].endswith(f":{version}")
    assert VALUES["nightly"]["image"].endswith(f":{version}")


@pytest.fixture(scope="module")
def helm(helm_program):
    program = helm_program()

    def run(*arguments):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def rendered(helm, tmp_path_factory):
    """Render the chart with values; the text of all objects."""

    def render(values, release="multigate"):
        path = tmp_path_factory.mktemp("values") / "values.yaml"
        path.write_text(yaml.safe_dump(values))
        command = ("template", release, CHART, "--kube-version", KUBERNETES, "--values", path)
        return helm(*command, "--namespace", "ranking")

    return render


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Helm may have to be built
def test_the_chart_passes_helms_lint(helm, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(EVERYTHING))
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "--values", values)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Helm may have to be built
def test_by_default_it_is_the_manifests(rendered):
    found = by_name(rendered({}))
    plain = {}
    for name in ("server.yaml", "cronjob.yaml"):
        plain |= by_name((ROOT / "deploy" / name).read_text())
    policies = {("NetworkPolicy", f"multigate-{one}") for one in ("server", "nightly")}
    assert set(found) == set(plain) | policies
    for name, expected in plain.items():
        assert found[name] == expected, name


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Helm may have to be built
def test_two_releases_share_nothing(rendered):
    first, second = by_name(rendered(EVERYTHING, "one")), by_name(rendered(EVERYTHING, "two"))
    assert not set(first) & set(second)
    for release, found in (("one", first), ("two", second)):
        night = found["CronJob", f"{release}-nightly"]["spec"]["jobTemplate"]["spec"]["template"]
        for pod in (night, found["Deployment", f"{release}-tools"]["spec"]["template"]):
            assert pod["spec"]["volumes"][0]["configMap"]["name"] == f"{release}-config"
    labels = [
        found["Deployment", f"{release}-server"]["spec"]["selector"]["matchLabels"]
        for release, found in (("one", first), ("two", second))
    ]
    assert labels[0] != labels[1]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Helm may have to be built
def test_what_can_be_switched_on(rendered):
    found = by_name(rendered(EVERYTHING))
    deployment = found["Deployment", "multigate-server"]["spec"]
    pod = deployment["template"]["spec"]
    (server,) = pod["containers"]
    assert {"--auth_token_file=/tokens/tokens", "--feature_store=redis://redis:6379/0"} <= set(
        server["args"]
    )
    assert {"name": "MULTIGATE_LOG_FORMAT", "value": "json"} in server["env"]
    assert pod["nodeSelector"] == {"disk": "fast"}
    # One volume of impressions, which the server writes and the nightly run reads.
    assert "--impression_log=/data/shown" in server["args"]
    assert {"name": "impressions", "mountPath": "/data"} in server["volumeMounts"]
    claim = {"claimName": "shown"}
    assert {"name": "impressions", "persistentVolumeClaim": claim} in pod["volumes"]
    assert "replicas" not in deployment  # the autoscaler's
    scaler = found["HorizontalPodAutoscaler", "multigate-server"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == "multigate-server"
    (metric,) = scaler["metrics"]
    assert metric["pods"]["metric"]["name"] == "multigate_calls_in_flight"
    labels = deployment["selector"]["matchLabels"]
    service = found["Service", "multigate"]
    assert service["metadata"]["labels"] == labels
    monitor = found["ServiceMonitor", "multigate"]
    assert monitor["metadata"]["labels"]["release"] == "operator"
    assert monitor["spec"]["selector"]["matchLabels"] == labels
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    allowed = found["NetworkPolicy", "multigate-server"]["spec"]
    assert allowed["podSelector"]["matchLabels"] == labels
    named = {port["name"] for port in server["ports"]}
    clients, prometheus = ({port["port"] for port in rule["ports"]} for rule in allowed["ingress"])
    assert (clients, prometheus) == ({"grpc", "rest"}, {"metrics"})
    assert named == clients | prometheus
    run = found["CronJob", "multigate-nightly"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert run["containers"][0]["args"][-2:] == ["--accept", "max_row_drop"]
    assert run["volumes"][0]["configMap"]["name"] == "multigate-config"
    claim["readOnly"] = True
    assert {"name": "impressions", "persistentVolumeClaim": claim} in run["volumes"]
    assert {"name": "impressions", "mountPath": "/data", "readOnly": True} in (
        run["containers"][0]["volumeMounts"]
    )
    config = found["ConfigMap", "multigate-config"]["data"]["model.yaml"]
    assert config == EVERYTHING["nightly"]["config"]
    alerts = yaml.safe_load((CHART / "monitoring" / "alerts.yaml").read_text())
    assert found["PrometheusRule", "multigate"]["spec"] == alerts
    board = found["ConfigMap", "multigate-dashboard"]["data"]["multigate.json"]
    assert json.loads(board) == json.loads((CHART / "monitoring" / "dashboard.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Helm may have to be built
def test_the_commands_of_a_trial_run_in_a_pod_of_the_chart(helm, tmp_path):
    """What docs/operations.md has `kubectl exec` run is there: pod, program, files, server."""
    section = PAGE.partition("\n## On Kubernetes\n")[2].partition("\n## ")[0]
    lines = [shlex.split(line) for line in re.findall(r"^(?:helm|kubectl) .*", section, re.M)]
    install, upgrade, *commands = lines
    shown = tmp_path / "shown.yaml"
    shown.write_text("name: shown\n")
    values = [word.replace("=shown.yaml", f"={shown}") for word in upgrade[5:]]
    command = ["template", install[2], CHART, "--kube-version", KUBERNETES, *install[4:], *values]
    found = by_name(helm(*command))
    pod = found["Deployment", "multigate-tools"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == VALUES["nightly"]["image"]
    nightly = found["CronJob", "multigate-nightly"]["spec"]["jobTemplate"]["spec"]["template"]
    theirs = {one["name"]: one for one in nightly["spec"]["volumes"]}
    ours = {one["name"]: one for one in pod["volumes"]}
    for name in ("runs", "config", "impressions"):
        assert ours[name] == theirs[name]
    shown_by = found["ConfigMap", ours["shown"]["configMap"]["name"]]["data"]
    files = {"/config": {"model.yaml"}, "/shown": set(shown_by)}
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert [words[5] for words in commands] == [
        *("publish", "examples", "trial", "publish", "publish", "models")
    ]
    for words in commands:
        assert words[:5] == ["kubectl", "exec", "deployment/multigate-tools", "--", "multigate"]
        given = {key: value for key, value in itertools.pairwise(words) if key.startswith("--")}
        for key, value in given.items():
            if not value.startswith("/"):
                continue
            mount = f"/{value.split('/')[1]}"
            assert not (mounts[mount] and key in ("--out", "--base")), words
            assert mount not in files or value.removeprefix(f"{mount}/") in files[mount]
        if "--target" in given:
            name, port = given["--target"].split(":")
            ports = found["Service", name]["spec"]["ports"]
            assert int(port) in [one["port"] for one in ports if one["name"] == "grpc"]
        assert make_parser().parse_args(words[5:])


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Helm may have to be built
def test_the_rest_port_can_be_moved_and_switched_off(rendered):
    def ports(values):
        found = by_name(rendered(values))
        (server,) = found["Deployment", "multigate-server"]["spec"]["template"]["spec"][
            "containers"
        ]
        flags = [one for one in server["args"] if one.startswith("--rest_api_port")]
        opened = {port["name"]: port["containerPort"] for port in server["ports"]}
        offered = found["Service", "multigate"]["spec"]["ports"]
        assert {port["targetPort"]: port["port"] for port in offered} == opened
        rules = found["NetworkPolicy", "multigate-server"]["spec"]["ingress"]
        assert {port["port"] for rule in rules for port in rule["ports"]} == set(opened)
        return flags, opened.get("rest")

    assert ports({"server": {"restPort": 9000}}) == (["--rest_api_port=9000"], 9000)
    for off in (0, None):
        assert ports({"server": {"restPort": off}}) == ([], None)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Helm may have to be built
def test_an_empty_list_of_peers_lets_nobody_in(rendered):
    """Kubernetes reads an empty `from` as everybody."""

    def rules(**peers):
        found = by_name(rendered({"networkPolicy": peers}))
        rules = found["NetworkPolicy", "multigate-server"]["spec"]["ingress"]
        assert all(rule["from"] for rule in rules)
        return [[port["port"] for port in rule["ports"]] for rule in rules]

    assert rules(clients=[]) == [["metrics"]]
    assert rules(prometheus=[]) == [["grpc", "rest"]]
    assert rules(clients=[], prometheus=[]) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Helm may have to be built
def test_a_pod_that_need_not_sleep_has_no_hook(rendered):
    """Kubernetes refuses a sleep of 0 seconds."""
    found = by_name(rendered({"server": {"sleepSeconds": 0}}))
    pod = found["Deployment", "multigate-server"]["spec"]["template"]["spec"]
    assert "lifecycle" not in pod["containers"][0]
    assert pod["terminationGracePeriodSeconds"] == 50


KINDS = {
    *("Deployment", "Service", "PodDisruptionBudget", "CronJob", "ConfigMap"),
    *("HorizontalPodAutoscaler", "NetworkPolicy"),
}
OPERATORS = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, whose schemas are in its resource definitions."""


@pytest.fixture(scope="module")
def schemas(go_module, tmp_path_factory):
    """A folder of strict JSON schemas, by kind: Kubernetes' own and the Prometheus operator's."""
    folder = tmp_path_factory.mktemp("schemas")

    def write(kind, group, version, schema):
        group = f"{group.split('.')[0]}-" if group else ""
        (folder / f"{kind}-{group}{version}.json".lower()).write_text(json.dumps(schema))

    path = go_module("k8s.io/kubernetes", KUBERNETES) / "api" / "openapi-spec" / "swagger.json"
    definitions = json.loads(path.read_text())["definitions"]
    for name, definition in definitions.items():
        if "properties" in definition:
            definition["additionalProperties"] = False
        if name.endswith((".intstr.IntOrString", ".resource.Quantity")):
            definition.pop("format", None)
            definition["type"] = ["string", "number"]
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            if kind["kind"] in KINDS:
                schema = {"$ref": f"#/definitions/{name}", "definitions": definitions}
                write(kind["kind"], kind["group"], kind["version"], schema)
    path = go_module("github.com/prometheus-operator/prometheus-operator", OPERATOR)
    for kind in OPERATORS:
        name = f"monitoring.coreos.com_{kind.lower()}s.yaml"
        text = (path / "example" / "prometheus-operator-crd" / name).read_text()
        spec = yaml.safe_load(text)["spec"]
        (version,) = spec["versions"]
        schema = strict(version["schema"]["openAPIV3Schema"])
        write(kind, spec["group"], version["name"], schema)
    return folder


def strict(schema):
    """A resource definition's schema, in which no object has keys that it does not name."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Helm may have to be built
def test_kubernetes_accepts_every_object(rendered, schemas, go_tool, tmp_path):
    kubeconform = go_tool("github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0")

    def check(text):
        path = tmp_path / "objects.yaml"
        path.write_text(text)
        place = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
        command = [kubeconform, "-schema-location", place]
        return subprocess.run(
            [*command, "-output", "json", "-summary", path],
            capture_output=True,
            text=True,
            check=False,
        )

    for values in ({}, EVERYTHING):
        text = rendered(values)
        done = check(text)
        assert done.returncode == 0, done.stdout + done.stderr
        summary = json.loads(done.stdout)["summary"]
        objects = by_name(text)
        assert summary == {"valid": len(objects), "invalid": 0, "errors": 0, "skipped": 0}
    assert {kind for kind, _ in objects} == KINDS | OPERATORS
    # It would notice: a key that no object has, and a value of another type.
    for right, wrong in (
        ("startingDeadlineSeconds:", "startingDeadline:"),
        ("maxReplicas: 8", "maxReplicas: eight"),
        ("relabelings:", "relabeling:"),
        ("alert: MultigateDown", "alarm: MultigateDown"),
    ):
        assert text.count(right) == 1
        assert check(text.replace(right, wrong)).returncode == 1, wrong
