"""A stand-in for the API server of Kubernetes, for a real kubectl: lists pods, executes in them.

A double: pods are what a test says they are, and "containers" are namespaces of processes on this
machine. What kubectl sends and expects is real: JSON over HTTP, and the v5.channel.k8s.io protocol
over a WebSocket (kubectl 1.31 and later; earlier ones speak SPDY, which this does not).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "test",
    "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}


def pod(
    name: str,
    labels: Mapping[str, str] | None = None,
    containers: Mapping[str, int] | None = None,
    host: str = "",
    **status: Any,
) -> dict[str, Any]:
    """Return a pod of namespace ``ml`` as the API shows it; ``containers`` have so many GPUs."""
    specs = [
        {"name": key, "image": "x", "resources": {"limits": {"nvidia.com/gpu": f"{gpus}"}}}
        for key, gpus in (containers or {"main": 0}).items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "labels": dict(labels or {}), "uid": name},
        "spec": {"nodeName": host, "containers": specs},
        "status": {"phase": "Running", **status},
    }


class KubeApi(ThreadingHTTPServer):
    """The server; in its context an environment variable leads kubectl to it."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pods: list[dict[str, Any]] = []
        self.prefixes: dict[tuple[str, str], Sequence[str]] = {}
        """What runs a command in a container of a pod."""
        self.refusal: tuple[int, str, str] | None = None
        """Code, reason and message for whoever lists pods."""
        self.config = folder / "kubeconfig"
        server = {"server": f"http://127.0.0.1:{self.server_port}"}
        clusters = {"clusters": [{"name": "c", "cluster": server}]}
        self.config.write_text(json.dumps(CONFIG | clusters))

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: kubectl that is killed breaks its connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: KubeApi

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        words, query = url.path.strip("/").split("/"), parse_qs(url.query)
        if words[-1] == "exec":
            self._execute(words[-2], query)
        elif words == ["api"]:
            self._answer({"kind": "APIVersions", "versions": ["v1"]})
        elif words == ["apis"]:
            self._answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})
        elif words == ["api", "v1"]:
            pods = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod"}
            resources = [{**pods, "verbs": ["get", "list"]}]
            lists = {"kind": "APIResourceList", "groupVersion": "v1", "resources": resources}
            self._answer(lists)
        elif words[-1] == "pods" and self.server.refusal is not None:
            self._refuse(*self.server.refusal)
        elif words[-1] == "pods":
            self._answer(
                {"kind": "PodList", "apiVersion": "v1", "items": self._listed(words, query)}
            )
        else:
            self._answer_pod(words[-1])

    def _listed(self, words: Sequence[str], query: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        selector = query.get("labelSelector", [""])[0]
        wanted = {tuple(part.split("=", 1)) for part in selector.split(",") if part}
        return [
            pod
            for pod in self.server.pods
            if wanted <= set(pod["metadata"]["labels"].items()) and words[-2] == "ml"
        ]

    def _answer_pod(self, name: str) -> None:
        pods = [pod for pod in self.server.pods if pod["metadata"]["name"] == name]
        if pods:
            self._answer(pods[0])
        else:
            self._refuse(404, "NotFound", f'pods "{name}" not found')

    def _refuse(self, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self._answer({**status, "reason": reason, "message": message}, code)

    def _answer(self, document: object, code: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _execute(self, name: str, query: Mapping[str, list[str]]) -> None:
        prefix = self.server.prefixes.get((name, query["container"][0]))
        if prefix is None:
            self._refuse(500, "InternalError", f'container not found ("{query["container"][0]}")')
            return
        key = self.headers["Sec-WebSocket-Key"].encode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accepted = base64.b64encode(hashlib.sha1(key + GUID).digest())
        self.send_header("Sec-WebSocket-Accept", accepted.decode())
        self.send_header("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
        self.end_headers()
        self.close_connection = True
        self._lock = threading.Lock()
        with subprocess.Popen(
            [*prefix, *query["command"]],
            stdin=subprocess.PIPE if "stdin" in query else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            self._carry(process)

    def _carry(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        outputs = [
            threading.Thread(target=self._send_all, args=(STDOUT, process.stdout.fileno())),
            threading.Thread(target=self._send_all, args=(STDERR, process.stderr.fileno())),
        ]
        for thread in (*outputs, threading.Thread(target=self._take, args=(process,), daemon=True)):
            thread.start()
        for thread in outputs:
            thread.join()
        code = process.wait()
        status: dict[str, Any] = {"status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            message = f"command terminated with non-zero exit code: exit status {code}"
            status = {"status": "Failure", "reason": "NonZeroExitCode", "message": message}
            status["details"] = {"causes": causes}
        self._send(ERROR, json.dumps(status).encode())
        self._frame(8, struct.pack(">H", 1000))

    def _send_all(self, channel: int, descriptor: int) -> None:
        while data := os.read(descriptor, 65536):
            self._send(channel, data)

    def _send(self, channel: int, data: bytes) -> None:
        self._frame(2, bytes([channel]) + data)

    def _frame(self, kind: int, data: bytes) -> None:
        first, size = 0x80 | kind, len(data)
        form, mark = (">BBH", 126) if size < 65536 else (">BBQ", 127)
        head = bytes([first, size]) if size < 126 else struct.pack(form, first, mark, size)
        with self._lock:
            self.wfile.write(head + data)
            self.wfile.flush()

    def _take(self, process: subprocess.Popen[bytes]) -> None:
        """Hand on what kubectl sends: the end of input, and that the connection breaks, too."""
        try:
            while True:
                data = self._read_frame()
                if data[:1] == bytes([STDIN]) and process.stdin:
                    process.stdin.write(data[1:])
                    process.stdin.flush()
                elif data[:1] == bytes([CLOSE]) and process.stdin:
                    process.stdin.close()
        except (OSError, ValueError, struct.error):
            process.kill()

    def _read_frame(self) -> bytes:
        first, size = self.rfile.read(2)
        masked, size = size & 0x80, size & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self.rfile.read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self.rfile.read(8))
        mask = self.rfile.read(4) if masked else bytes(4)
        data = self.rfile.read(size)
        if first & 0x0F == 8:
            raise OSError("closed")
        whole = (mask * (size // 4 + 1))[:size]
        return (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")
