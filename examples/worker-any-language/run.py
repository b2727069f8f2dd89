"""Runs the bank of service.py behind `hapax worker`, puts messages into a queue, and shows what became of them.

    python3 run.py                  builds hapax first
    python3 run.py --hapax PATH     uses this binary

Exits with 0 if each transfer moved its money once.
"""

import json
import os
import pathlib
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent

# A producer writes one row in its own transaction, next to its own rows. `is_first` says whether a message of the same
# ordering key waits before it; these messages have none. Times are in milliseconds.
ENQUEUE = """
insert into hapax_queue (queue, is_first, visible_at, enqueued_at, headers, payload)
values ('transfers', 1, :now, :now, :headers, :payload)
"""

# A broker delivers a message again whenever it does not know better. So order-1 is here twice. The order of messages is
# not certain either: order-2 needs the money of order-1.
MESSAGES = [
    ("order-2", {"from": "bob", "to": "carol", "amount": 120}),
    ("order-1", {"from": "alice", "to": "bob", "amount": 30}),
    ("order-1", {"from": "alice", "to": "bob", "amount": 30}),
    ("order-3", {"from": "alice", "to": "nobody", "amount": 5}),
]
LATER = [
    ("order-1", {"from": "alice", "to": "bob", "amount": 31}),
]
EXPECTED = {"alice": 70, "bob": 10, "carol": 220}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, holds):
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out: {what}")
        time.sleep(0.05)


def get(url):
    """The body at a URL, or nothing if it cannot be had."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.read()
    except OSError:
        return None


def build():
    root = HERE.parent.parent
    subprocess.run(["cargo", "build", "--quiet", "--package", "hapax-cli"], cwd=root, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    return str(root / target / "debug" / "hapax")


def main(hapax, folder):
    shop, store = f"{folder}/shop.db", f"sqlite://{folder}/hapax.db"
    service_port, admin_port = free_port(), free_port()
    service = subprocess.Popen([sys.executable, HERE / "service.py", str(service_port)])
    worker = subprocess.Popen(
        [hapax, "worker", "--source", f"sqlite://{shop}?queue=transfers"]
        + ["--target", f"http://127.0.0.1:{service_port}/transfers", "--store", store]
        + ["--admin", f"127.0.0.1:{admin_port}"],
        env={**os.environ, "HAPAX_LOG": os.environ.get("HAPAX_LOG", "warn")},
    )
    try:
        until("the bank listens", lambda: get(f"http://127.0.0.1:{service_port}/balances"))
        until("the worker is ready", lambda: get(f"http://127.0.0.1:{admin_port}/readyz"))
        until("the worker has created the queue", lambda: is_table_there(shop))
        for messages in (MESSAGES, LATER):
            enqueue(shop, messages)
            until("the queue is empty", lambda: waiting(shop) == 0)
        balances = json.loads(get(f"http://127.0.0.1:{service_port}/balances"))
        print(f"balances: {balances}")
        subprocess.run([hapax, "dead", "list", "--store", store], check=True)
        worker.terminate()
        stopped = worker.wait(30)
    finally:
        for process in (worker, service):
            process.kill()
            process.wait()
    return balances == EXPECTED and stopped == 0


def enqueue(shop, messages):
    with sqlite3.connect(shop, timeout=30) as connection:
        for key, order in messages:
            headers = json.dumps([["Idempotency-Key", key], ["Content-Type", "application/json"]])
            row = {"now": int(time.time() * 1000), "headers": headers, "payload": json.dumps(order).encode()}
            connection.execute(ENQUEUE, row)


def query(file, sql):
    with sqlite3.connect(file, timeout=30) as connection:
        return connection.execute(sql).fetchone()[0]


def is_table_there(file):
    return query(file, "select count(*) from sqlite_master where name = 'hapax_queue'") == 1


def waiting(file):
    return query(file, "select count(*) from hapax_queue")


if __name__ == "__main__":
    binary = sys.argv[2] if sys.argv[1:2] == ["--hapax"] else build()
    with tempfile.TemporaryDirectory() as folder:
        if not main(binary, folder):
            raise SystemExit(f"expected {EXPECTED}, and a worker that stops with 0")
    print("each transfer moved its money once")
