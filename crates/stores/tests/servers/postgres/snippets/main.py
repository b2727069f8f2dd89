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
