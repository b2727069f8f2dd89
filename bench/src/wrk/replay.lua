-- Every request is a copy of the first.
function init(args)
   wrk.method, wrk.path = "POST", "/charges"
   wrk.headers["Authorization"] = "Bearer bench"
   wrk.headers["Content-Type"] = "application/json"
   wrk.headers["Idempotency-Key"] = "the-same"
   wrk.body = '{"amount":500,"currency":"eur"}'
end
