# Behind the snippet: pays for each line of the input, `OPERATION FINGERPRINT AMOUNT` with `-` for null, and prints
# `OUTCOME ANSWER`, or `error CODE`.
import sys

with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    for line in sys.stdin:
        operation, fingerprint, amount = line.split()
        try:
            outcome, answer = pay(connection, operation, None if fingerprint == "-" else fingerprint, int(amount))
            print(outcome, (answer or b"-").decode(), flush=True)
        except psycopg.Error as error:
            print("error", error.sqlstate, flush=True)

# An open transaction: the first statement begins it, because the driver does not commit by itself.
with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("select 1")
    try:
        pay(connection, "00000000-0000-8000-8000-000000000009", None, 9)
        print("paid in an open transaction", flush=True)
    except RuntimeError:
        print("refused", flush=True)
