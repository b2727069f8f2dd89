"""Another service: writes one receipt for each event.

    python3 receipts.py 9001 receipts.db

`hapax worker` sends it the events. `Hapax-Operation` is derived from the id of the event, and the service writes it
beside the receipt: so it recognizes a copy also after a crash in the middle of its work.
"""

import sqlite3
import sys
from http.server import ThreadingHTTPServer

from service import Service

TABLE = "create table if not exists receipt (operation text primary key, payment text not null)"


class Receipts(Service):
    def do_POST(self):
        operation, payment = self.headers["Hapax-Operation"], self.body()
        with self.database() as receipts:
            receipts.execute("insert into receipt values (?, ?) on conflict do nothing", (operation, payment))
        self.answer(201, "written\n")


if __name__ == "__main__":
    Receipts.file = sys.argv[2]
    with sqlite3.connect(Receipts.file) as database:
        database.execute(TABLE)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receipts).serve_forever()
