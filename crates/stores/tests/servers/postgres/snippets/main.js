// Behind the snippet: pays for each line of the input, `OPERATION FINGERPRINT AMOUNT` with `-` for null, and prints
// `OUTCOME ANSWER`, or `error CODE`.
const { Client } = require("pg");

(async () => {
  const client = new Client(process.argv[2]);
  await client.connect();
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    const [operation, fingerprint, amount] = line.split(" ");
    try {
      const { outcome, answer } = await pay(client, operation, fingerprint === "-" ? null : fingerprint, amount);
      console.log(outcome, answer ? answer.toString() : "-");
    } catch (error) {
      console.log("error", error.code);
    }
  }
  await client.end();
})();
