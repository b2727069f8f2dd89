"""Starts bank.py behind `hapax gateway`, receipts.py behind `hapax worker`, and `hapax relay` between them. Then it
makes every copy that a network makes, and shows what was booked.

    python3 run.py                  builds hapax first
    python3 run.py --hapax PATH     uses this binary

Exits with 0 if each payment was booked once and has one receipt, and `hapax reconcile` finds nothing wrong.
"""

import contextlib
import os
import pathlib
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = ["alice 500", "bob 20"]


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


def is_ready(url):
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def pay(port, key, payment):
    """Sends a payment, and returns the status, and whether the answer is a replay."""
    fields = {"Idempotency-Key": key, "Authorization": "Bearer me", "Content-Type": "text/plain"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/payments", payment.encode(), fields)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, "Idempotent-Replayed" in answer.headers
    except urllib.error.HTTPError as error:
        return error.code, False


def rows(file, sql):
    with contextlib.closing(sqlite3.connect(file, timeout=30)) as connection, connection:
        return [row[0] for row in connection.execute(sql)]


def build():
    root = HERE.parent.parent
    subprocess.run(["cargo", "build", "--quiet", "--package", "hapax-cli"], cwd=root, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    return str(root / target / "debug" / "hapax")


def main(hapax, folder):
    bank, post, receipts = (f"{folder}/{name}.db" for name in ("bank", "post", "receipts"))
    front, bank_port, receipts_port = free_port(), free_port(), free_port()
    admins = [free_port() for _ in range(3)]
    listen = [["--admin", f"127.0.0.1:{port}"] for port in admins]
    subprocess.run([hapax, "migrate", "--database", f"sqlite://{bank}"], check=True)
    commands = [
        [sys.executable, "-B", HERE / "bank.py", str(bank_port), bank],
        [sys.executable, "-B", HERE / "receipts.py", str(receipts_port), receipts],
        # Layer 1: one answer for each key. A second attempt is harmless, since the bank keeps the operation's id.
        [hapax, "gateway", "--listen", f"127.0.0.1:{front}", "--upstream", f"http://127.0.0.1:{bank_port}"]
        + ["--store", f"sqlite://{folder}/requests.db", "--on-lapse", "retry", *listen[0]],
        # Layer 3: publishes each event that was committed.
        [hapax, "relay", "--database", f"sqlite://{bank}", "--sink", f"sqlite://{post}?queue={{topic}}", *listen[1]],
        # Layer 2: sends each event to the other service once.
        [hapax, "worker", "--source", f"sqlite://{post}?queue=receipts", "--on-lapse", "retry"]
        + ["--target", f"http://127.0.0.1:{receipts_port}/", "--store", f"sqlite://{folder}/messages.db", *listen[2]],
    ]
    log = {**os.environ, "HAPAX_LOG": os.environ.get("HAPAX_LOG", "warn")}
    processes = []
    try:
        for command in commands:
            processes.append(subprocess.Popen(command, env=log))
        for port in (bank_port, receipts_port):
            until("the services listen", lambda: is_ready(f"http://127.0.0.1:{port}/"))
        for port in admins:
            until("hapax is ready", lambda: is_ready(f"http://127.0.0.1:{port}/readyz"))
        for key, payment in [("order-1", "alice 500"), ("order-2", "bob 20"), ("order-1", "alice 500")]:
            print(f"{key}, {payment}: {pay(front, key, payment)}")
        print(f"order-1, another payment: {pay(front, 'order-1', 'alice 600')}")
        until("two receipts", lambda: len(rows(receipts, "select payment from receipt")) >= 2)
        # The relay publishes both again, and the queue has forgotten that it had them.
        rows(post, "delete from hapax_queue_event returning 1")
        subprocess.run([hapax, "outbox", "republish", "--database", f"sqlite://{bank}", "--since", "1h"], check=True)
        opened = "select state from hapax_outbox where state = 0"
        until("both are published again", lambda: rows(bank, opened) == [])
        until("the queue is empty", lambda: rows(post, "select count(*) from hapax_queue") == [0])
        for process in processes[2:]:
            process.terminate()
        stopped = [process.wait(30) for process in processes[2:]]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    bookings = rows(bank, "select payment from booking order by 1")
    written = rows(receipts, "select payment from receipt order by 1")
    print(f"bookings: {bookings}\nreceipts: {written}", flush=True)
    # The bank keeps the operations in its own table and has no ledger, so an answer needs no row in one.
    compare = [hapax, "reconcile", "--store", f"sqlite://{folder}/requests.db", "--database", f"sqlite://{bank}"]
    agree = subprocess.run([*compare, "--no-ledger", "--longest-transaction", "1ms"]).returncode == 0
    return bookings == written == EXPECTED and stopped == [0, 0, 0] and agree


if __name__ == "__main__":
    binary = sys.argv[2] if sys.argv[1:2] == ["--hapax"] else build()
    with tempfile.TemporaryDirectory() as scratch:
        if not main(binary, scratch):
            raise SystemExit(f"expected {EXPECTED} in both, processes that stop with 0, and no finding")
    print("each payment was booked once, and has one receipt")
