// Calls of the admin API. `docs/admin.md` describes it.

const PREFIX = 'api/v1/';
const TOKEN = 'hapax-admin-token';

/** A call that was refused or failed. */
export class CallError extends Error {
  constructor(status, answer) {
    const command = answer.command ? `\nThis would work: ${answer.command}` : '';
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
  const response = await request(method, path, body);
  if (response.status !== 401) return response;
  await askForToken();
  return send(method, path, body);
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

function askForToken() {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById('sign-in');
    const field = dialog.querySelector('input');
    field.value = '';
    // Only a token ends the wait.
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => {
      sessionStorage.setItem(TOKEN, field.value.trim());
      field.value = '';
      asking = null;
      resolve();
    };
    dialog.showModal();
  });
  return asking;
}
