-- Nothing to protect.
wrk.method, wrk.path = "GET", "/charges/1"
wrk.headers["Authorization"] = "Bearer bench"
