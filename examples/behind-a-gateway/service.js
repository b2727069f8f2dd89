// A service that knows nothing of retries: every POST is a new charge.

const http = require("node:http");

let charges = 0;

const service = http.createServer(async (request, response) => {
  let order = "";
  for await (const chunk of request) order += chunk;
  charges += 1;
  response.writeHead(201).end(`charge ${charges}: ${order}\n`);
});

service.listen(9000, "127.0.0.1");
