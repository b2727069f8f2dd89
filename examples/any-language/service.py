"""Transfers in PostgreSQL. Each transfer, its answer and its event commit in one transaction, so the money moves once.

    python3 service.py postgres://postgres@localhost/bank 9000

`hapax gateway` before it gives each operation an id, `Hapax-Operation`, the same in every attempt. docs/ledger.md is
the contract of the functions. It needs psycopg 3, and the tables of `hapax migrate`.
"""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

TABLES = """
create table if not exists account (name text primary key, balance bigint not null check (balance >= 0));
create table if not exists transfer (operation text, payer text references account, payee text references account,
                                     amount bigint);
"""

ONCE = "select outcome, answer from hapax_once('transfers', %s, %s)"
DONE = "select hapax_done('transfers', %s, %s)"
EMIT = "select hapax_emit('transfers', %s, 0, 'transfers', %s, okey => %s)"

STATUSES = {"fresh": 201, "replay": 201, "busy": 409, "mismatch": 422, "dead": 422}

connections = threading.BoundedSemaphore(16)


def transfer(url, operation, fingerprint, order):
    payer, payee, amount = order.split()
    with connections, psycopg.connect(url) as connection:  # commits at its end, rolls back after an exception
        outcome, answer = connection.execute(ONCE, (operation, fingerprint)).fetchone()
        if outcome == "fresh":
            for name, change in sorted([(payer, -int(amount)), (payee, int(amount))]):
                connection.execute("update account set balance = balance + %s where name = %s", (change, name))
            connection.execute("insert into transfer values (%s, %s, %s, %s)", (operation, payer, payee, int(amount)))
            answer = f"{payer} gave {payee} {amount}: {operation}\n".encode()
            connection.execute(DONE, (operation, answer))
            connection.execute(EMIT, (operation, answer, payer.encode()))
    return STATUSES[outcome], answer or f"{outcome}\n".encode()


def try_transfer(*arguments):
    for pause in (0.01, 0.1, 1):
        try:
            return transfer(*arguments)
        except ValueError:
            return 400, b"send: FROM TO AMOUNT\n"
        except psycopg.IntegrityError:
            return 422, b"no such account, or not enough money\n"
        except psycopg.OperationalError as error:  # a conflict or a lost reply: after a commit, the next try replays
            print(error, file=sys.stderr)
            time.sleep(pause)
    return 500, b"try again\n"  # the outcome is unknown


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    url = ""

    def do_POST(self):
        order = self.rfile.read(int(self.headers["Content-Length"])).decode()
        operation, fingerprint = self.headers["Hapax-Operation"], self.headers["Hapax-Fingerprint"]
        status, answer = try_transfer(self.url, operation, fingerprint, order)
        self.send_response(status)
        if status == 409:
            self.send_header("Retry-After", "1")  # says that nothing was applied
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    Service.url = sys.argv[1]
    with psycopg.connect(Service.url) as database:
        database.execute(TABLES)
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Service).serve_forever()
