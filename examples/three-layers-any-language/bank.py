"""A bank that books payments and announces each of them, with an SQLite file and nothing but the standard library.

    python3 bank.py 9000 bank.db

`hapax gateway` before it gives each operation an id, `Hapax-Operation`, the same in every attempt. The bank writes the
id beside the booking, and the event beside both, in one transaction.
"""

import hashlib
import sqlite3
import sys
import time
import uuid
from http.server import ThreadingHTTPServer

from service import Service

TABLE = "create table if not exists booking (operation text primary key, payment text not null)"

# The clauses O3 and O9 of docs/outbox.md. A relay publishes the row after the commit.
EMIT = """
insert into hapax_outbox (event_id, namespace, topic, bucket, created_at, payload)
values (?, 'bank', 'receipts', ?, ?, ?)
"""


class Bank(Service):
    def do_POST(self):
        operation, payment = self.headers["Hapax-Operation"], self.body()
        with self.database() as bank:
            fresh = bank.execute("insert into booking values (?, ?) on conflict do nothing", (operation, payment))
            # An earlier attempt may have committed before its answer got lost.
            if fresh.rowcount == 1:
                event_id = uuid.uuid4().bytes
                bucket = hashlib.sha256(event_id).digest()[0] % 64
                now = int(time.time() * 1000)
                bank.execute(EMIT, (event_id, bucket, now, payment.encode()))
        self.answer(201, f"booked {payment}\n")


if __name__ == "__main__":
    Bank.file = sys.argv[2]
    with sqlite3.connect(Bank.file) as database:
        database.execute(TABLE)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Bank).serve_forever()
