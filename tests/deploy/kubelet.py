"""A minimal kubelet: runs the pods of rendered manifests as local processes, with probes and graceful termination.

Commands, environment, probes and grace are read from the manifests alone. Three things stand in for a container: a
pod's empty folders are folders of this machine, whose paths replace the mount paths wherever these stand; the image's
programs are those on the PATH; and all pods have the address 127.0.0.1.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


class Pod:
    """One pod with one container."""

    def __init__(self, name: str, template: dict[str, Any], secrets: dict[str, dict[str, str]], folder: Path) -> None:
        self.name = name
        self._spec = template["spec"]
        (self._container,) = self._spec["containers"]
        self.grace_seconds = self._spec["terminationGracePeriodSeconds"]
        self._folders = self._mount(folder / name)
        self._environment = self._resolve(secrets)
        words = [*self._container["command"], *self._container["args"]]
        command = [self._path(_VARIABLE.sub(self._variable, word)) for word in words]
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self._path(self._container["workingDir"]),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text("utf-8", "replace")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def peak_bytes(self) -> int:
        """Peak memory, while it runs."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) * 1024

    def probe(self, kind: str) -> bool:
        """Run one probe once: `startupProbe`, `livenessProbe`, or `readinessProbe`."""
        probe = self._container[kind]
        seconds = probe.get("timeoutSeconds", 1)
        if "exec" in probe:
            words = [self._path(word) for word in probe["exec"]["command"]]
            return (
                subprocess.run(words, env=self._environment, timeout=30, check=False, capture_output=True).returncode
                == 0
            )
        port = probe["httpGet"]["port"]
        number = next(each["containerPort"] for each in self._container["ports"] if each["name"] == port)
        try:
            with urlopen(f"http://127.0.0.1:{number}{probe['httpGet']['path']}", timeout=seconds) as answer:
                return bool(200 <= answer.status < 400)
        except OSError:
            return False

    def until_ready(self, seconds: float = 60.0) -> None:
        """Wait as long as the startup probe allows, then for readiness."""
        started = self._container["startupProbe"]
        end = time.monotonic() + max(seconds, started["periodSeconds"] * started["failureThreshold"])
        while not (self.probe("startupProbe") and self.probe("readinessProbe")):
            assert self.is_running, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.1)

    def terminate(self) -> None:
        """Start the termination of a pod: preStop hook, then SIGTERM."""
        if hook := self._container.get("lifecycle", {}).get("preStop"):
            subprocess.run(hook["exec"]["command"], env=self._environment, check=True)
        self._had_begun = self.probe("startupProbe")
        self.process.send_signal(signal.SIGTERM)

    def gone(self) -> int:
        """Wait for the exit within the grace period; returns the exit code, -9 if it had to be killed.

        One that had not begun holds nothing: the signal itself may end it."""
        try:
            code = self.process.wait(self.grace_seconds)
            return 0 if code == -signal.SIGTERM and not self._had_begun else code
        except subprocess.TimeoutExpired:
            self.kill()
            return -9

    def kill(self) -> None:
        """Kill it, like a failing node."""
        if self.is_running:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)

    def _mount(self, folder: Path) -> dict[str, str]:
        empty = {volume["name"] for volume in self._spec["volumes"] if "emptyDir" in volume}
        found = {}
        for mount in self._container["volumeMounts"]:
            # Folders of a whole machine, such as /tmp, stay what they are.
            if mount["name"] in empty and mount["mountPath"].count("/") > 1:
                own = folder / mount["name"]
                own.mkdir(parents=True, exist_ok=True)
                found[mount["mountPath"]] = str(own)
        return found

    def _path(self, text: str) -> str:
        for there, here in self._folders.items():
            text = text.replace(there, here)
        return text

    def _resolve(self, secrets: dict[str, dict[str, str]]) -> dict[str, str]:
        """The container's environment, plus the variables to find our programs."""
        found = {name: os.environ[name] for name in ("PYTHONPATH", "HOME") if name in os.environ}
        found["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        for variable in self._container.get("env", ()):
            source = variable.get("valueFrom", {})
            if "secretKeyRef" in source:
                value = secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
            elif "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == "metadata.name"
                value = self.name
            else:
                value = _VARIABLE.sub(lambda match: found.get(match[1], match[0]), variable["value"])
            found[variable["name"]] = value
        return found

    def _variable(self, match: re.Match[str]) -> str:
        return self._environment.get(match[1], match[0])


class Workload:
    """A Deployment or a StatefulSet with a settable number of pods."""

    def __init__(self, objects: list[dict[str, Any]], kind: str, name: str, folder: Path) -> None:
        (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
        self._name = found["metadata"]["name"]
        self._is_ordinal = kind == "StatefulSet"
        self._template = found["spec"]["template"]
        self._secrets = {each["metadata"]["name"]: each["stringData"] for each in objects if each["kind"] == "Secret"}
        self._folder = folder
        self._started = 0
        self.pods: list[Pod] = []
        self.codes: list[int] = []
        self.names: list[str] = []

    def scale(self, count: int) -> None:
        """Start or terminate pods; pods terminate concurrently."""
        while len(self.pods) < count:
            number = len(self.pods) if self._is_ordinal else self._started
            pod = Pod(f"{self._name}-{number}", self._template, self._secrets, self._folder)
            self._started += 1
            self.names.append(pod.name)
            self.pods.append(pod)
        # The youngest go first, as a cluster prefers.
        leaving, self.pods = self.pods[count:], self.pods[:count]
        for pod in leaving:
            pod.terminate()
        self.codes += [pod.gone() for pod in leaving]

    def replace(self, pod: Pod) -> None:
        """Replace dead pods, in a StatefulSet by pods of the same name."""
        index = self.pods.index(pod)
        pod.kill()
        name = pod.name if self._is_ordinal else f"{self._name}-{self._started}"
        self._started += 1
        self.names.append(name)
        self.pods[index] = Pod(name, self._template, self._secrets, self._folder)

    def close(self) -> None:
        for pod in self.pods:
            pod.kill()
