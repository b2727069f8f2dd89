-- Every request has a key of its own: the run's, the thread's and a number.
local threads = 0
function setup(thread)
   thread:set("id", threads)
   threads = threads + 1
end

local number = 0
function init(args)
   run = args[1]
   wrk.method, wrk.path = "POST", "/charges"
   wrk.headers["Authorization"] = "Bearer bench"
   wrk.headers["Content-Type"] = "application/json"
   wrk.body = '{"amount":500,"currency":"eur"}'
end

function request()
   number = number + 1
   wrk.headers["Idempotency-Key"] = run .. "-" .. id .. "-" .. number
   return wrk.format()
end
