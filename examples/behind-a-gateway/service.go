// A service that knows nothing of retries: every POST is a new charge.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"sync/atomic"
)

func main() {
	var charges atomic.Int64
	http.HandleFunc("/charges", func(response http.ResponseWriter, request *http.Request) {
		order, err := io.ReadAll(request.Body)
		if err != nil {
			return // The caller left.
		}
		response.WriteHeader(http.StatusCreated)
		fmt.Fprintf(response, "charge %d: %s\n", charges.Add(1), order)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:9000", nil))
}
