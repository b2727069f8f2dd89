"""Starts service.py behind `hapax gateway`, and sends it copies. In between it kills both, and the gateway forgets its
records. Then it shows how much money has moved.

    python3 run.py --database postgres://postgres@localhost/bank                  builds hapax first
    python3 run.py --database postgres://postgres@localhost/bank --hapax PATH     uses this binary

Exits with 0 if the money has moved once.
"""

import argparse
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import psycopg

HERE = pathlib.Path(__file__).resolve().parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing listens on {port}")


def transfer(port, key, order):
    """Sends a transfer. Prints and returns the status and the answer, and whether the gateway had it in its records."""
    fields = {"Idempotency-Key": key, "Authorization": "Bearer me", "Content-Type": "text/plain"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/transfers", order.encode(), fields)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            got = response.status, response.read().decode(), "Idempotent-Replayed" in response.headers
    except urllib.error.HTTPError as error:
        got = error.code, "", False
    print(f"{key}, {order}: {got}")
    return got


def build():
    root = HERE.parent.parent
    subprocess.run(["cargo", "build", "--quiet", "--package", "hapax-cli"], cwd=root, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    return str(root / target / "debug" / "hapax")


def start(hapax, url, store):
    """Starts both. Returns the processes and the port of the gateway."""
    service_port, port, admin = free_port(), free_port(), free_port()
    service = subprocess.Popen([sys.executable, "-B", HERE / "service.py", url, str(service_port)])
    wait_for(service_port)
    gateway = [hapax, "gateway", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
    gateway += ["--upstream", f"http://127.0.0.1:{service_port}", "--store", store, "--on-lapse", "retry"]
    # The host with its port is a part of the payload, and each gateway has another port here.
    gateway = subprocess.Popen([*gateway, "--fingerprint-host", "off"], env={**os.environ, "HAPAX_LOG": "warn"})
    wait_for(port)
    return [service, gateway], port


def main(hapax, url, folder):
    subprocess.run([hapax, "migrate", "--database", url], check=True)
    answers = []
    for store in ("first.db", "second.db"):  # the second gateway has no records
        processes, port = start(hapax, url, f"sqlite://{folder}/{store}")
        try:
            with psycopg.connect(url) as database:
                database.execute("insert into account values ('alice', 100), ('bob', 100) on conflict do nothing")
            answers += [transfer(port, "order-1", "alice bob 5") for _ in range(2)]
            answers.append(transfer(port, "order-1", "alice bob 6"))
            answers.append(transfer(port, "order-2", "alice bob 500"))
        finally:
            for process in processes:
                process.kill()
                process.wait()
    with psycopg.connect(url) as database:
        balances = dict(database.execute("select name, balance from account order by name").fetchall())
        events = database.execute("select count(*) from hapax_outbox").fetchone()[0]
    print(f"balances: {balances}, events: {events}")
    transferred = {answer for status, answer, _ in answers if status == 201}
    return balances == {"alice": 95, "bob": 105} and events == len(transferred) == 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--hapax")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if not main(arguments.hapax or build(), arguments.database, scratch):
            raise SystemExit("the money has not moved once")
    print("the money has moved once")
