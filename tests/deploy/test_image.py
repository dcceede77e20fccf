"""The image and the compose file, checked without a container engine: by linters, and in a clean root file system."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rootfs
import yaml
from manifests import CASES, DEPLOY, ROOT, one, rendered

from gossamer.cli import named
from gossamer.settings import Settings
from gossamer.testing.servers import RedisServer, free_port

sys.path.insert(0, str(ROOT / "tests" / "crawl"))
from processes import until

DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", DOCKERFILE, re.MULTILINE)


def test_hadolint_passes() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


def test_image_is_unprivileged_with_a_health_check() -> None:
    assert len(instructions("FROM")) == 2
    assert instructions("USER") == ["10001:10001"]
    assert instructions("ENTRYPOINT") == ['["gossamer"]']
    assert len(instructions("HEALTHCHECK")) == 1


def test_every_package_of_the_image_is_pinned_with_hashes_to_what_is_tested() -> None:
    tested = dict(PIN.findall((ROOT / "requirements-dev.lock").read_text("utf-8")))
    pinned = dict(PIN.findall((DEPLOY / "requirements.lock").read_text("utf-8")))
    assert {name: version for name, version in pinned.items() if tested.get(name) != version} == {}
    assert {"redis", "prometheus-client", "starlette", "uvicorn", "obstore", "asyncpg"} <= set(pinned)
    installs = [line for line in instructions("RUN") if "pip install" in line and "--no-index" not in line]
    assert all("--require-hashes" in line and "--only-binary :all:" in line for line in installs)


def test_build_context_contains_only_what_is_copied() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
    copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert sorted(allowed) == sorted(copied)
    assert all((ROOT / name).exists() for name in copied)


def test_compose_file_defines_all_services() -> None:
    services = COMPOSE["services"]
    assert sorted(services) == ["grafana", "prometheus", "redis", "service", "worker"]
    assert services["worker"]["deploy"]["replicas"] == 3
    assert int(services["worker"]["stop_grace_period"].removesuffix("m")) * 60 > Settings().drain_seconds + 15
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ()))
    assert "--appendonly yes" in services["redis"]["command"][-1]
    sources = [mount.split(":")[0] for service in services.values() for mount in service.get("volumes", ())]
    assert all((DEPLOY / name).exists() for name in sources if name.startswith("."))
    assert {name for name in sources if not name.startswith(".")} == set(COMPOSE["volumes"])


def test_compose_file_matches_the_specification() -> None:
    checker = Path(sys.executable).parent / "check-jsonschema"
    words = [str(checker), "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout


def test_compose_itself_reads_its_file() -> None:
    """`docker compose config` needs no engine."""
    for words in (["docker", "compose"], ["docker-compose"]):
        said = (
            subprocess.run([*words, "version", "--short"], capture_output=True, text=True, check=False, timeout=60)
            if shutil.which(words[0])
            else None
        )
        if said is not None and said.returncode == 0 and not said.stdout.startswith("1."):
            break
    else:
        pytest.skip("docker compose is not installed: its own reading of the compose file is not checked")
    names = re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text("utf-8"))
    empty = {name: value for name, value in os.environ.items() if name not in names}
    read = [*words, "-f", str(DEPLOY / "compose.yaml"), "config", "--format", "json"]
    refused = subprocess.run(read, env=empty, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode != 0
    assert "set it in deploy/.env" in refused.stderr
    full = empty | dict.fromkeys(names, "s3cret")
    done = subprocess.run(read, env=full, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert services["worker"]["deploy"]["replicas"] == 3
    assert services["worker"]["environment"]["GOSSAMER_FRONTIER"] == "redis://:s3cret@redis:6379/0"
    assert services["redis"]["command"][-1].count("$$REDISCLI_AUTH") <= 1


def test_compose_file_contains_no_secrets() -> None:
    text = (DEPLOY / "compose.yaml").read_text("utf-8")
    for line in text.splitlines():
        if re.match(r"\s+\w*(PASSWORD|TOKEN|REDISCLI_AUTH|FRONTIER)\w*: ", line):
            assert "${" in line
    assert "deploy/.env" in (ROOT / ".gitignore").read_text("utf-8").split()


def commands() -> dict[str, list[str]]:
    """The arguments of every container that runs gossamer."""
    found = {f"compose {name}": COMPOSE["services"][name]["command"] for name in ("worker", "service")}
    for case, values in CASES.items():
        for each in rendered(values):
            if each["kind"] in ("Deployment", "StatefulSet") and not each["metadata"]["name"].endswith("-redis"):
                found[f"{case} {each['metadata']['name']}"] = each["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def test_every_container_command_is_valid() -> None:
    found = commands()
    assert len(found) >= 12
    for words in found.values():
        command = named(words[0])
        command.make_context(words[0], list(words[1:]))


@pytest.fixture
def clean_root(tmp_path: Path) -> Path:
    """A Debian root file system with Python, instead of the base image; skips the test if it cannot be created."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip(
            "no debootstrap, or not root: the RUN lines of the image are not run (scripts/services installs it)"
        )
    kept = os.environ.get("CLEAN_ROOT", "")
    root = Path(kept or tmp_path / "debian")
    if not kept:
        packages = "--include=python3,python3-venv,ca-certificates"
        words = ["debootstrap", "--variant=minbase", packages, "bookworm", str(root)]
        subprocess.run(words, check=True, capture_output=True, timeout=1200)
    # The base image calls it python.
    (root / "usr" / "local" / "bin" / "python").unlink(missing_ok=True)
    (root / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
    for name in ("etc/resolv.conf", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt"):
        if (found := Path("/") / name).is_file():
            shutil.copy(found, root / name)
    return root


UNCOMPILED = """
import os, sys
from importlib.util import cache_from_source
import gossamer, gossamer.cli.fleet, gossamer.cli.serve, gossamer.frontier.redis.frontier
for name, module in list(sys.modules.items()):
    path = getattr(module, "__file__", None) or ""
    if path.endswith(".py") and not os.path.exists(cache_from_source(path)):
        print(name)
"""


def bytecode(root: Path) -> dict[str, str]:
    """Digests of all installed compiled modules."""
    found = (root / "opt/gossamer/lib").rglob("*.pyc")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_the_instructions_of_the_image_work_in_a_clean_root(
    clean_root: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Runs both stages on Debian's Python instead of the base image, then the program and its health check."""
    image = rootfs.build(DEPLOY / "Dockerfile", ROOT, clean_root, tmp_path / "stages")
    assert (image.user, image.folder) == ("10001:10001", "/run/gossamer")
    entry = rootfs.listed(image.kept["ENTRYPOINT"])
    shown = image.run(*entry, *rootfs.listed(image.kept["CMD"]))
    assert shown.returncode == 0, shown.stderr
    assert "Usage: gossamer" in shown.stdout
    assert image.run("sh", "-c", "echo >/opt/gossamer/x").returncode != 0
    assert not list((image.root / "opt/gossamer/bin").glob("pip*"))
    loaded = image.run("python", "-c", UNCOMPILED)
    assert (loaded.returncode, loaded.stdout) == (0, ""), loaded.stdout + loaded.stderr
    first = bytecode(image.root)
    again = next(line for line in instructions("RUN") if line.startswith("python -m compileall"))
    root = replace(image, user="0:0")
    assert root.run("sh", "-ec", again.replace(" -q ", " -q -f ")).returncode == 0
    assert bytecode(image.root) == first != {}
    health = rootfs.listed(image.kept["HEALTHCHECK"])
    assert image.run(*health).returncode != 0
    words = [word.replace("${GOSSAMER_JOB_NAME:-crawl}", "crawl") for word in COMPOSE["services"]["worker"]["command"]]
    worker = image.start(*entry, *words, GOSSAMER_FRONTIER=redis_server.url)
    try:
        until(lambda: image.run(*health).returncode == 0, 120)
    finally:
        worker.terminate()
        assert worker.wait(60) == 0


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_buildah_builds_the_image(clean_root: Path, tmp_path: Path) -> None:
    """With chroot isolation and Debian's Python, so without an engine or a registry."""
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed: no builder has seen the Dockerfile (scripts/services installs it)")
    stores = ["--root", str(tmp_path / "images"), "--runroot", str(tmp_path / "run"), "--storage-driver", "vfs"]

    def buildah(*words: str) -> str:
        done = subprocess.run(["buildah", *stores, *words], capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    base = buildah("from", "scratch")
    buildah("add", "-q", base, str(clean_root), "/")
    buildah("commit", "-q", base, "base")
    own = ("--build-arg", "BASE=localhost/base", "-f", "deploy/Dockerfile", "-t", "gossamer", ".")
    buildah("bud", "--isolation", "chroot", "--network", "host", "--format", "docker", *own)
    made = json.loads(buildah("inspect", "--type", "image", "gossamer"))["Docker"]["config"]
    assert (made["User"], made["Entrypoint"], made["WorkingDir"]) == ("10001:10001", ["gossamer"], "/run/gossamer")
    assert made["Healthcheck"]["Test"][0] == "CMD"
    container = buildah("from", "gossamer")
    said = buildah("run", "--isolation", "chroot", container, "--", "sh", "-c", "id -u; gossamer --version")
    assert said.split()[:2] == ["10001", "gossamer,"]


@pytest.mark.skipif(
    not RedisServer.is_there() and os.environ.get("CI") != "true", reason="redis-server is not installed"
)
def test_redis_accepts_its_rendered_configuration(tmp_path: Path) -> None:
    objects = rendered({"redis": {"password": 'a "b" c'}})
    (tmp_path / "auth.conf").write_text(one(objects, "Secret", "-frontier")["stringData"]["auth.conf"])
    text = one(objects, "ConfigMap")["data"]["redis.conf"]
    text = text.replace("/etc/redis/secret/", f"{tmp_path}/").replace("dir /data", f"dir {tmp_path}")
    (tmp_path / "redis.conf").write_text(text)
    port = str(free_port())
    server = subprocess.Popen(["redis-server", tmp_path / "redis.conf", "--port", port], stdout=subprocess.DEVNULL)
    try:
        ask = ["redis-cli", "-p", port, "-a", 'a "b" c', "--no-auth-warning"]
        answer = ""
        for _ in range(100):
            done = subprocess.run([*ask, "config", "get", "append*"], capture_output=True, text=True, check=False)
            answer = done.stdout
            if "appendonly" in answer:
                break
        assert "appendonly\nyes" in answer
        assert "appendfsync\neverysec" in answer
        bare = subprocess.run(["redis-cli", "-p", port, "ping"], capture_output=True, text=True, check=False)
        assert "NOAUTH" in bare.stdout
    finally:
        server.terminate()
        server.wait(20)
