// Messages that were sent and not yet acknowledged: a reload must not lose them. The key keeps them single.

const KEPT = "qworkspace.outbox";

/** The messages of that session that may not have arrived: `[{key, text}]`. */
export function unsent(place) {
  return read().filter((message) => message.place === place);
}

export function keep(place, key, text) {
  write([...read().filter((message) => message.key !== key), { place, key, text }]);
}

/** The daemon has it, or has refused it. */
export function forget(key) {
  write(read().filter((message) => message.key !== key));
}

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) ?? [];
  } catch {
    return [];
  }
}

function write(messages) {
  try {
    if (messages.length) sessionStorage.setItem(KEPT, JSON.stringify(messages));
    else sessionStorage.removeItem(KEPT);
  } catch {
    // A browser that keeps nothing: a reload at the wrong moment loses the message.
  }
}
