"""The files of `deploy/`: linters accept them, and the commands, ports, paths and volumes in them exist and agree."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from starlette.testclient import TestClient

import leafbeam
from leafbeam.cli.app import app
from leafbeam.config_file import load_config
from leafbeam.engine import Settings
from leafbeam.serve import Access, KeyFile, ServerConfig, create_app
from leafbeam.serve.access import need_of
from leafbeam.serve.keys import add_key

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
UNIT = (DEPLOY / "leafbeam.service").read_text(encoding="utf-8")
OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
FOLLOWING = list(yaml.safe_load_all((DEPLOY / "kubernetes-following.yaml").read_text(encoding="utf-8")))
POD = OBJECTS[0]["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
YAMLLINT = (
    "{extends: default, rules: {line-length: {max: 140}, document-start: disable, braces: {max-spaces-inside: 0}, "
    "truthy: {check-keys: false}}}"
)


def tool(name: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a linter of the environment or the system; skipped by name without it."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return subprocess.run([found, *words], capture_output=True, text=True)


def instruction(name: str) -> list[str]:
    """The words of an instruction of the Dockerfile in JSON form."""
    return yaml.safe_load(re.findall(rf"^\s*{name} (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])


def unit_value(name: str) -> str:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)[-1]


def commands() -> dict[str, list[str]]:
    """The command of `leafbeam` in each file, without its name."""
    return {
        "Dockerfile": instruction("CMD"),
        "compose.yaml": COMPOSE["services"]["leafbeam"]["command"],
        "leafbeam.service": shlex.split(unit_value("ExecStart"))[1:],
        "kubernetes.yaml": CONTAINER["args"],
        "kubernetes-following.yaml": FOLLOWING[1]["spec"]["template"]["spec"]["containers"][0]["args"],
    }


# Linters.


def test_hadolint_accepts_the_dockerfile(tmp_path: Path) -> None:
    found = tool("hadolint", str(DEPLOY / "Dockerfile"))
    assert (found.returncode, found.stdout) == (0, "")
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp && sudo true\n")
    assert tool("hadolint", str(tmp_path / "Dockerfile")).returncode == 1


def test_yamllint_accepts_all_yaml() -> None:
    found = tool("yamllint", "--strict", "-d", YAMLLINT, str(DEPLOY), str(ROOT / ".github"))
    assert found.returncode == 0, found.stdout


def test_the_schemas_of_kubernetes_accept_the_manifests(tmp_path: Path) -> None:
    for name in ("kubernetes.yaml", "kubernetes-following.yaml"):
        found = tool("kubernetes-validate", "--strict", str(DEPLOY / name))
        assert found.returncode == 0, found.stdout + found.stderr
    wrong = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8").replace("readinessProbe", "readyProbe")
    (tmp_path / "wrong.yaml").write_text(wrong)
    assert tool("kubernetes-validate", "--strict", str(tmp_path / "wrong.yaml")).returncode != 0


def test_systemd_accepts_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    unit = tmp_path / "leafbeam.service"
    unit.write_text(UNIT.replace("/opt/leafbeam/bin/leafbeam", "/bin/true"))
    found = tool("systemd-analyze", "verify", "--man=no", str(unit))
    assert (found.returncode, found.stderr) == (0, "")
    hardened = tool("systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit))  # 2.0 of 10
    assert hardened.returncode == 0, hardened.stdout[-200:]


# What they say of leafbeam.


@pytest.mark.parametrize("file", commands())
def test_every_option_is_one_of_serve(file: str) -> None:
    command, *words = commands()[file]
    assert command == "serve"
    group: Any = typer.main.get_command(app)
    parameters = group.commands["serve"].make_context("serve", words).params
    assert str(parameters["run"]).startswith(("/srv/run", "/var/lib/leafbeam"))
    assert (parameters["host"], parameters["port"]) == ("0.0.0.0", 8000)
    assert parameters["keys"] is not None, "other machines reach it: it needs keys"
    assert not parameters["exposure__insecure"]


def test_an_option_that_does_not_exist_is_found() -> None:
    group: Any = typer.main.get_command(app)
    with pytest.raises(Exception, match=r"(?i)no such option"):
        group.commands["serve"].make_context("serve", ["--no-such-option"])


def test_probes_ask_routes_that_need_no_key(first_shop: Any, tmp_path: Path) -> None:
    probes = [CONTAINER[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    checked = re.findall(r"127\.0\.0\.1:8000(/\w+)", DOCKERFILE)
    assert len(checked) == 1
    paths = {probe["path"] for probe in probes} | set(checked)
    assert paths == {"/readyz"}
    add_key(tmp_path / "keys.json", "shop", "read")
    with TestClient(create_app(first_shop.engine(), access=Access(keys=KeyFile(tmp_path / "keys.json")))) as client:
        assert [client.get(path).status_code for path in paths] == [200]
        assert client.get("/metrics").status_code == 401
    assert need_of("GET", "/readyz") is None


def test_replicas_that_follow_a_source_differ_from_the_others_in_what_that_needs(tmp_path: Path) -> None:
    config, deployment, scaler = FOLLOWING
    (tmp_path / "serve.toml").write_text(config["data"]["serve.toml"])
    settings = load_config(ServerConfig(), tmp_path / "serve.toml")
    assert settings.feed.name == "Kafka topic shop.public.items"
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {name: container[name] for name in ("ports", "lifecycle", "resources", "securityContext")} == {
        name: CONTAINER[name] for name in ("ports", "lifecycle", "resources", "securityContext")
    }
    assert pod["securityContext"] == POD["securityContext"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"  # a source that is away starts no pod again
    assert need_of("GET", "/healthz") is None
    volumes = {volume["name"] for volume in pod["volumes"]}
    for one in (*pod["initContainers"], container):
        assert {mount["name"] for mount in one["volumeMounts"]} <= volumes
    assert deployment["metadata"]["name"] == OBJECTS[0]["metadata"]["name"] == scaler["spec"]["scaleTargetRef"]["name"]


def test_haproxy_accepts_its_file_and_asks_for_readiness() -> None:
    text = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
    path = re.findall(r"option httpchk GET (\S+)", text)
    repeated = re.findall(r"unless { path (\S+) }", text)
    assert path == ["/readyz"]
    assert repeated == ["/v1/recommend"]
    seconds = int(re.findall(r"timeout server (\d+)s", text)[0])
    assert seconds > Settings().timeout_s
    checked = tool("haproxy", "-c", "-f", str(DEPLOY / "haproxy.cfg"))
    assert checked.returncode == 0, checked.stderr


def test_ports_and_probes_agree() -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {"http": 8000}
    assert {CONTAINER[name]["httpGet"]["port"] for name in ("startupProbe", "readinessProbe", "livenessProbe")} == {"http"}
    assert OBJECTS[1]["spec"]["ports"][0]["targetPort"] == "http"
    assert "\nEXPOSE 8000\n" in DOCKERFILE
    assert all(port.startswith("127.0.0.1:") for one in COMPOSE["services"].values() for port in one["ports"])
    targets = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"][0]
    assert targets["static_configs"][0]["targets"] == ["leafbeam:8000"]


def test_a_stop_lasts_longer_than_the_grace_of_requests() -> None:
    for file, seconds in (
        ("compose.yaml", int(COMPOSE["services"]["leafbeam"]["stop_grace_period"].removesuffix("s"))),
        ("leafbeam.service", int(unit_value("TimeoutStopSec"))),
        ("kubernetes.yaml", POD["terminationGracePeriodSeconds"]),
    ):
        words = " ".join(commands()[file]).replace("=", " ").split()
        sleep = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1]) if file == "kubernetes.yaml" else 0
        assert seconds > int(words[words.index("--grace") + 1]) + 2 + sleep, file  # 2: `Server` adds them


def test_nothing_runs_as_root_or_may_become_it() -> None:
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == ["10001:10001"]
    assert POD["securityContext"]["runAsNonRoot"]
    assert POD["securityContext"]["runAsUser"] == 10001
    context = CONTAINER["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    service = COMPOSE["services"]["leafbeam"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert unit_value("User") == "leafbeam"


def test_what_is_written_has_a_volume_and_resources_have_limits() -> None:
    cache = "/var/cache/leafbeam"
    assert f"NUMBA_CACHE_DIR={cache}" in DOCKERFILE
    assert f"NUMBA_CACHE_DIR={cache}" in UNIT
    assert f'VOLUME ["{cache}"]' in DOCKERFILE
    assert f"--mode=777 {cache}" in DOCKERFILE  # compose.yaml's user is not the image's
    assert COMPOSE["services"]["leafbeam"]["user"].startswith("${SERVER_USER")
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert mounts["kernels"] == cache
    assert set(mounts) == {volume["name"] for volume in POD["volumes"]}
    assert any(volume.endswith(f":{cache}") for volume in COMPOSE["services"]["leafbeam"]["volumes"])
    assert set(CONTAINER["resources"]["limits"]) == {"cpu", "memory"}
    assert set(COMPOSE["services"]["leafbeam"]["deploy"]["resources"]["limits"]) == {"cpus", "memory"}


def test_files_that_are_mounted_or_copied_exist() -> None:
    for service in COMPOSE["services"].values():
        for volume in service["volumes"]:
            if volume.startswith("./"):
                assert (DEPLOY / volume.split(":")[0]).exists(), volume
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
            assert f"!{name}\n" in ignored, name


def test_images_name_their_versions_and_leafbeam_its_own() -> None:
    images = [service["image"] for service in COMPOSE["services"].values() if "build" not in service]
    images += re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert all(re.search(r":v?\d", image) for image in images), images
    assert CONTAINER["image"] == f"leafbeam:{leafbeam.__version__}"
