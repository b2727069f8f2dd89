// Calls of the admin API. `docs/admin.md` describes it.

const PREFIX = 'api/v1/';
const TOKEN = 'hapax-admin-token';

/** How long a list without entries is read, in milliseconds. */
const LONGEST_SEARCH = 60_000;

/** A call that was refused or failed. */
export class CallError extends Error {
  constructor(status, answer) {
    const command = answer.command ? `\nThis would work: ${answer.command} --admin ${window.location.origin}` : '';
    super(`${answer.detail ?? answer.error}${command}`);
    this.status = status;
    this.answer = answer;
  }
}

/** Reads a path of the API. Arguments without a value are left out. */
export async function read(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== '');
  const words = new URLSearchParams(given).toString();
  return call('GET', PREFIX + path + (words && `?${words}`));
}

/**
 * Reads the pages of a list until one has an entry, or the list ends. A page may be empty before that, because a filter
 * fits few records. Calls `onEmpty` after each empty page. Stops when the operator goes to another page of the
 * dashboard.
 */
export async function readUntilFound(path, query, isFound, onEmpty) {
  const place = window.location.hash;
  const end = performance.now() + LONGEST_SEARCH;
  let page = await read(path, query);
  while (!isFound(page) && page.next && window.location.hash === place && performance.now() < end) {
    onEmpty();
    page = await read(path, { ...query, cursor: page.next });
  }
  return page;
}

/** Writes. An answer that does not arrive leaves the outcome unknown. */
export async function write(path, body) {
  return call('POST', PREFIX + path, JSON.stringify(body));
}

/** The page of metrics, as a list of { name, labels, value }. */
export async function metrics() {
  const text = await (await send('GET', 'metrics')).text();
  const line = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
  const samples = text.split('\n').map((row) => line.exec(row)).filter((found) => found !== null);
  return samples.map(([, name, labels, value]) => ({ name, labels: labelsOf(labels ?? ''), value: Number(value) }));
}

/** Whether requests should be sent to the process, and the reason why not. */
export async function readiness() {
  const response = await request('GET', 'readyz');
  return { isReady: response.ok, text: (await response.text()).trim() };
}

function labelsOf(text) {
  return Object.fromEntries([...text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]));
}

async function call(method, path, body) {
  const response = await send(method, path, body);
  const answer = await response.json().catch(() => ({ error: `status ${response.status}` }));
  if (!response.ok) throw new CallError(response.status, answer);
  return answer;
}

async function send(method, path, body) {
  const sent = sessionStorage.getItem(TOKEN);
  const response = await request(method, path, body);
  const isRequired = response.status === 401;
  if (!isRequired && !(await mayOnlyRead(response))) return response;
  // The operator gave another token meanwhile.
  if (sessionStorage.getItem(TOKEN) !== sent) return send(method, path, body);
  const why = !isRequired ? ASKS.write : sent === null ? ASKS.read : ASKS.wrong;
  return (await askForToken(isRequired, why)) ? send(method, path, body) : response;
}

/** Why the operator is asked for a token. */
const ASKS = {
  read: 'This listener asks for a token. It is kept in this tab only.',
  wrong: 'This token is wrong: the process refuses it. --admin-token-file names the file with the right one.',
  write: 'Your token may only read. Give one that may write, or press Escape.',
};

/** Whether another token may do what this one may not. */
async function mayOnlyRead(response) {
  if (response.status !== 403) return false;
  const answer = await response.clone().json().catch(() => ({}));
  return answer.error === 'token-reads-only';
}

async function request(method, path, body) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  try {
    return await fetch(path, { method, headers, body, cache: 'no-store', credentials: 'omit', redirect: 'error' });
  } catch {
    const detail = method === 'GET'
      ? 'The process does not answer.'
      : 'No answer arrived. The write may or may not have happened: read the record again.';
    throw new CallError(0, { error: 'no-answer', detail });
  }
}

// Concurrent calls ask once.
let asking = null;

/** Returns whether the operator gave a token. Without a required one, the page has nothing to show. */
function askForToken(isRequired, why) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById('sign-in');
    const field = dialog.querySelector('input');
    const text = document.getElementById('sign-in-text');
    text.textContent = why;
    text.className = why === ASKS.wrong ? 'alarm' : '';
    field.value = '';
    dialog.returnValue = '';
    dialog.oncancel = (event) => { if (isRequired) event.preventDefault(); };
    dialog.onclose = () => {
      const isGiven = dialog.returnValue === 'ok';
      if (isGiven) sessionStorage.setItem(TOKEN, field.value.trim());
      field.value = '';
      asking = null;
      resolve(isGiven || isRequired);
    };
    dialog.showModal();
  });
  return asking;
}
