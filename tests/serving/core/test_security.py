"""TLS, mutual TLS and bearer tokens."""

import datetime
import ipaddress
import ssl
import urllib.error
import urllib.request

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf import text_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

from multigate.configs.errors import ServingError
from multigate.serving.client import probe
from multigate.serving.client.rank_client import CallError, RankClient
from multigate.serving.core.security import read_tokens, server_credentials, shows_token
from multigate.serving.protos.ssl_config_pb2 import SSLConfig
from multigate.verbs.command import main


def name(text):
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


class Authority:
    """Signs certificates for 127.0.0.1 and writes them as PEM files."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = name(f"authority {folder.name}")
        self.ca = self.write("ca.pem", self.sign(self.name, self.key, ca=True))

    def sign(self, subject, key, ca=False):
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca, None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, subject):
        """Paths of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        certificate = self.write(f"{subject}.pem", self.sign(name(subject), key))
        return certificate, self.write(f"{subject}.key", pem)

    def write(self, file, data):
        path = self.folder / file
        path.write_bytes(data)
        return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates") / "strange")


def ssl_config(folder, authority, **changes):
    certificate, key = authority.issue("server")
    config = SSLConfig(server_key=key.read_text(), server_cert=certificate.read_text(), **changes)
    path = folder / "ssl.txt"
    path.write_text(text_format.MessageToString(config))
    return path


@pytest.fixture
def base(tmp_path, publish):
    folder = tmp_path / "models"
    folder.mkdir()
    publish(folder, 1)
    return folder


def code_of(target, **credentials):
    with (
        RankClient(target, timeout=120, **credentials) as client,
        pytest.raises(CallError) as raised,
    ):
        client.contract("small")
    return raised.value.code


def https(port, ca, pair=None):
    """The status of a request over HTTPS."""
    context = ssl.create_default_context(cafile=ca)
    if pair is not None:
        context.load_cert_chain(*pair)
    url = f"https://127.0.0.1:{port}/v1/models/small"
    with urllib.request.urlopen(url, timeout=120, context=context) as answer:
        return answer.status


def test_http_has_the_tls_of_grpc(base, tmp_path, run_server, authority, stranger, until):
    config = ssl_config(tmp_path, authority, client_verify=True, custom_ca=authority.ca.read_text())
    pair = authority.issue("caller")
    with run_server(base, ssl_config_file=config, rest_api_port=0) as running:
        port = running.server.rest_port
        assert https(port, authority.ca, pair) == 200
        with pytest.raises(OSError, match=r"certificate required|reset|EOF|ALERT|closed"):
            https(port, authority.ca)
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            https(port, stranger.ca, pair)

        def renewed():
            try:
                return https(port, stranger.ca, stranger.issue("caller")) == 200
            except OSError:
                return False

        ssl_config(tmp_path, stranger, client_verify=True, custom_ca=stranger.ca.read_text())
        until(renewed)
        with pytest.raises(OSError, match=r"unknown ca|reset|EOF|ALERT|closed"):
            https(port, stranger.ca, pair)


def test_tls_shows_the_server_to_its_callers(base, tmp_path, run_server, authority, stranger):
    with run_server(base, ssl_config_file=ssl_config(tmp_path, authority)) as running:
        with RankClient(running.target, timeout=120, ca=authority.ca) as client:
            assert client.contract("small").model_version == 1
        target = ["--target", running.target, "--timeout", "60"]
        assert probe.main([*target, "--ca", str(authority.ca)]) == 0
        assert probe.main(target) == 1
        assert code_of(running.target, ca=stranger.ca) == "UNAVAILABLE"
        assert code_of(running.target, tls=True) == "UNAVAILABLE"
        assert code_of(running.target) == "UNAVAILABLE"


def serial_number(target):
    """Of the certificate that the server shows to a new connection."""
    host, port = target.split(":")
    pem = ssl.get_server_certificate((host, int(port)), timeout=120)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def test_certificates_are_exchanged_while_the_server_runs(
    base, tmp_path, run_server, authority, stranger, caplog
):
    path = ssl_config(tmp_path, authority)
    with (
        run_server(base, ssl_config_file=path) as running,
        RankClient(running.target, timeout=120, ca=authority.ca) as client,
    ):
        assert client.contract("small").model_version == 1
        first = serial_number(running.target)
        path.write_text("server_key: 'half of")
        assert serial_number(running.target) == first
        assert "the server keeps its current certificates" in caplog.text
        path.unlink()
        assert serial_number(running.target) == first
        ssl_config(tmp_path, stranger)
        assert serial_number(running.target) != first
        assert client.contract("small").model_version == 1  # over the connection that it had
        with RankClient(running.target, timeout=120, ca=stranger.ca) as other:
            assert other.contract("small").model_version == 1


def test_mutual_tls_shows_the_callers_to_the_server(
    base, tmp_path, run_server, authority, stranger
):
    config = ssl_config(tmp_path, authority, custom_ca=authority.ca.read_text(), client_verify=True)
    ours, others = authority.issue("client"), stranger.issue("client")
    with run_server(base, ssl_config_file=config) as running:
        with RankClient(
            running.target, timeout=120, ca=authority.ca, certificate=ours[0], key=ours[1]
        ) as client:
            assert client.contract("small").model_version == 1
        assert code_of(running.target, ca=authority.ca) == "UNAVAILABLE"
        assert (
            code_of(running.target, ca=authority.ca, certificate=others[0], key=others[1])
            == "UNAVAILABLE"
        )


def test_every_call_but_health_shows_a_token(base, tmp_path, run_server):
    tokens = tmp_path / "tokens"
    tokens.write_text("old-token\n\nnew-token\n")
    with run_server(base, auth_token_file=tokens) as running:
        for token in ("old-token", "new-token"):
            with RankClient(running.target, timeout=120, token=token) as client:
                assert client.contract("small").model_version == 1
        for token in ("", "old", "old-token2", "OLD-TOKEN"):
            assert code_of(running.target, token=token) == "UNAUTHENTICATED"
        health = health_pb2_grpc.HealthStub(running.channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=120).status == 1
        reflection = reflection_pb2_grpc.ServerReflectionStub(running.channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError) as raised:
            list(reflection.ServerReflectionInfo(iter([question]), timeout=120))
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        answers = reflection.ServerReflectionInfo(
            iter([question]), timeout=120, metadata=[("authorization", "Bearer new-token")]
        )
        assert len(list(answers)) == 1
        unknown = running.channel.unary_unary("/multigate.RankingService/Unknown")
        with pytest.raises(grpc.RpcError) as raised:
            unknown(b"", timeout=120)
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        counted = 'request_count{method="refused",model_name="",status="UNAUTHENTICATED"} 6'
        assert counted in running.server.metrics.text()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *(("Bearer t", True), ("bearer t", True), ("BEARER  t", True), ("Bearer T", False)),
        *(("Bearert", False), ("Bearer", False), ("Basic t", False), (b"Bearer t", False)),
    ],
)
def test_the_scheme_of_a_token_may_be_written_in_any_case(value, shown):
    assert shows_token([("authorization", value)], ["other", "t"]) is shown


def test_tokens_are_exchanged_while_the_server_runs(base, tmp_path, run_server, until, caplog):
    tokens = tmp_path / "tokens"
    tokens.write_text("first")
    with run_server(base, auth_token_file=tokens) as running:

        def works(token):
            try:
                with RankClient(running.target, timeout=120, token=token) as client:
                    return client.contract("small").model_version == 1
            except CallError:
                return False

        assert (works("first"), works("second")) == (True, False)
        tokens.write_text("")
        until(lambda: works("first") and "the server keeps its current tokens" in caplog.text)
        tokens.write_text("second")
        until(lambda: works("second"))
        assert not works("first")


def test_only_an_admin_token_may_reload(base, tmp_path, run_server):
    """A caller who may rank could serve any folder of the server's machine."""
    tokens = {}
    for name in ("auth", "admin"):
        tokens[name] = tmp_path / name
        tokens[name].write_text(f"{name}-token")

    def reload(running, *shown):
        stub = model_service_pb2_grpc.ModelServiceStub(running.channel)
        request = model_management_pb2.ReloadConfigRequest()
        request.config.model_config_list.config.add(name="small", base_path=str(base))
        metadata = [("authorization", f"Bearer {name}-token") for name in shown]
        try:
            stub.HandleReloadConfigRequest(request, timeout=120, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", ""

    switched_off = "reload requests are switched off; start the server with --admin_token_file"
    with run_server(base, admin_token_file=None) as running:
        assert reload(running) == ("PERMISSION_DENIED", switched_off)
        assert reload(running, "admin") == ("PERMISSION_DENIED", switched_off)
    with run_server(base, admin_token_file=tokens["admin"]) as running:
        assert reload(running)[0] == "PERMISSION_DENIED"
        assert reload(running, "admin") == ("OK", "")
        with RankClient(running.target, timeout=120) as client:
            assert client.contract("small").model_version == 1
    both = {"auth_token_file": tokens["auth"], "admin_token_file": tokens["admin"]}
    with run_server(base, **both) as running:
        assert reload(running)[0] == "UNAUTHENTICATED"
        code, details = reload(running, "auth")
        assert code == "PERMISSION_DENIED"
        assert "expected an admin token" in details
        assert reload(running, "admin") == ("OK", "")
        for name in ("auth", "admin"):
            with RankClient(running.target, timeout=120, token=f"{name}-token") as client:
                assert client.contract("small").model_version == 1


def test_the_command_line_encrypts_and_shows_its_token(
    base, tmp_path, run_server, authority, capsys
):
    token = tmp_path / "token"
    token.write_text("secret\n")
    config = ssl_config(tmp_path, authority)
    with run_server(base, ssl_config_file=config, auth_token_file=token) as running:
        command = ["rank", "--target", running.target, "--model", "small", "--items", "i1,i2"]
        command += ["--user", '{"user_id": "u"}', "--context", '{"hour": 1}', "--timeout", "60"]
        command += ["--columns", '{"length": [1, 2]}', "--ca", str(authority.ca)]
        assert main(command) == 2
        assert "UNAUTHENTICATED: expected a valid token" in capsys.readouterr().err
        assert main([*command, "--token_file", str(token)]) == 0
        assert "i1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "ssl.txt: server_key: expected the PEM text itself, received none"),
        ('server_key: "key.pem"', "server_key: expected the PEM text itself, received another"),
        ("server_kee: 1", r'ssl.txt: 1:.* no field named "server_kee"'),
        (
            'server_key: "-----BEGIN A" server_cert: "-----BEGIN B" client_verify: true',
            "client_verify: needs custom_ca",
        ),
    ],
)
def test_an_ssl_config_that_cannot_work(tmp_path, text, says):
    (tmp_path / "ssl.txt").write_text(text)
    with pytest.raises(ServingError, match=says):
        server_credentials(tmp_path / "ssl.txt")


def test_certificates_that_do_not_fit_their_key(base, tmp_path, run_server, authority):
    config = SSLConfig(
        server_key=authority.issue("one")[1].read_text(),
        server_cert=authority.issue("two")[0].read_text(),
    )
    (tmp_path / "ssl.txt").write_text(text_format.MessageToString(config))
    with pytest.raises(ServingError, match="certificates of --ssl_config_file; do they fit"):
        run_server(base, ssl_config_file=tmp_path / "ssl.txt").__enter__()


def test_files_that_cannot_be_read(tmp_path, authority):
    with pytest.raises(ServingError, match="absent: cannot be read: No such file"):
        server_credentials(tmp_path / "absent")
    with pytest.raises(ServingError, match=r"ca .*absent: cannot be read"):
        RankClient("127.0.0.1:1", ca=tmp_path / "absent")
    with pytest.raises(ServingError, match="certificate and key: expected both or neither"):
        RankClient("127.0.0.1:1", certificate=authority.ca)
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(ServingError, match="empty: expected printable ASCII tokens"):
        read_tokens(tmp_path / "empty")
