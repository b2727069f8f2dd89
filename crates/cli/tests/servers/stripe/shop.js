// A shop that pays with the library of Stripe, and the API behind the gateway. It prints the port of the API, reads the
// port of the gateway, and prints what the library returned.

const http = require('node:http')
const readline = require('node:readline')
const Stripe = require('stripe')

let effects = 0

const api = http.createServer((request, response) => {
  request.resume().on('end', () => {
    effects += 1
    // Long enough for the second of two simultaneous payments to arrive.
    const pause = request.url === '/v1/refunds' ? 300 : 0
    const status = request.url === '/v1/payouts' ? 500 : 200
    const body = status === 200 ? { id: `id_${effects}` } : { error: { type: 'api_error', message: 'no' } }
    setTimeout(() => {
      response.writeHead(status, { 'content-type': 'application/json', 'request-id': `req_${effects}` })
      response.end(JSON.stringify(body))
    }, pause)
  })
})

async function outcome (call) {
  try {
    const { id, lastResponse } = await call
    return { id, request: lastResponse.requestId, replayed: lastResponse.headers['idempotent-replayed'] === 'true' }
  } catch (error) {
    return { error: error.type, code: error.code, status: error.statusCode }
  }
}

async function shop (port) {
  const Client = Stripe.default ?? Stripe
  const stripe = new Client('sk_test_1', { host: '127.0.0.1', port, protocol: 'http', maxNetworkRetries: 2 })
  const pay = (amount, options) =>
    outcome(stripe.charges.create({ amount, currency: 'eur', source: 'tok_visa' }, options))
  const found = {
    first: await pay(5, { idempotencyKey: 'order-1' }),
    again: await pay(5, { idempotencyKey: 'order-1' }),
    reused: await pay(6, { idempotencyKey: 'order-1' }),
    account: await pay(5, { idempotencyKey: 'order-1', stripeAccount: 'acct_B' }),
    keyless: await pay(5),
    deleted: await outcome(stripe.customers.del('cus_1', {}, { idempotencyKey: 'bye-1' })),
    deletedAgain: await outcome(stripe.customers.del('cus_1', {}, { idempotencyKey: 'bye-1' }))
  }
  const before = effects
  const refund = () => outcome(stripe.refunds.create({ charge: 'ch_1' }, { idempotencyKey: 'refund-1' }))
  found.simultaneous = await Promise.all([refund(), refund()])
  found.refunds = effects - before
  const payout = () => outcome(stripe.payouts.create({ amount: 5, currency: 'eur' }, { idempotencyKey: 'payout-1' }))
  found.failed = await payout()
  found.payouts = effects - before - found.refunds
  return found
}

api.listen(0, '127.0.0.1', () => console.log(api.address().port))
readline.createInterface({ input: process.stdin }).once('line', async (port) => {
  console.log(JSON.stringify(await shop(Number(port))))
  process.exit(0)
})
