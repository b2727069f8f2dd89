package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Beside the snippet: pays for each line of the input, `OPERATION FINGERPRINT AMOUNT` with `-` for null, and prints
// `OUTCOME ANSWER`, or `error CODE`.
func main() {
	ctx := context.Background()
	connection, err := pgx.Connect(ctx, os.Args[1])
	if err != nil {
		panic(err)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		amount, _ := strconv.Atoi(words[2])
		fingerprint := &words[1]
		if *fingerprint == "-" {
			fingerprint = nil
		}
		outcome, answer, err := pay(ctx, connection, words[0], fingerprint, amount)
		var failed *pgconn.PgError
		switch {
		case errors.As(err, &failed):
			fmt.Println("error", failed.Code)
		case err != nil:
			panic(err)
		case answer == nil:
			fmt.Println(outcome, "-")
		default:
			fmt.Println(outcome, string(answer))
		}
	}
}
