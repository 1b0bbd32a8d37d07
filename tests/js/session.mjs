// A session of nostr-tools with a relay: node session.mjs ws://localhost:3000
// Exits 0 when everything went as NIP-01 says.

import assert from "node:assert/strict";
import { finalizeEvent, generateSecretKey, getPublicKey, verifyEvent } from "nostr-tools/pure";
import { Relay, useWebSocketImplementation } from "nostr-tools/relay";
import WebSocket from "ws";

useWebSocketImplementation(WebSocket);

const url = process.argv[2] ?? "ws://localhost:3000";
const secret = generateSecretKey();
const author = getPublicKey(secret);
const time = Math.floor(Date.now() / 1000);
const event = (kind, age, content, tags = []) =>
  finalizeEvent({ kind, created_at: time - age, tags, content }, secret);
// What the library keeps on the object beside the fields of the event.
const bare = ({ id, pubkey, created_at, kind, tags, content, sig }) =>
  ({ id, pubkey, created_at, kind, tags, content, sig });

const within = (what, promise) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited in vain: ${what}`)), 30_000);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

// Stored events, in the order in which they came.
const fetch = (relay, filters) =>
  within("EOSE", new Promise((resolve, reject) => {
    const found = [];
    const sub = relay.subscribe(filters, {
      onevent: (event) => found.push(event),
      oneose: () => { resolve(found); sub.close(); },
      onclose: (reason) => reject(new Error(reason)),
    });
  }));

const relay = await within("a connection", Relay.connect(url));
const reader = await within("a connection", Relay.connect(url));

// Published, then fetched by another connection.
const notes = ["first", 'caf\u00e9 \u{1f41d} "quoted" \\ \n\t \u2028'].map((text, age) =>
  event(1, age, text, [["t", "bees"], ["subject", text, "\u0007"]]));
for (const note of notes) await within("OK", relay.publish(note));
const found = await fetch(reader, [{ authors: [author], kinds: [1] }]);
assert.deepEqual(found.map(bare), notes.map(bare));
assert.ok(found.every((event) => verifyEvent(bare(event))));

// Live, after history.
const live = event(1, 0, "live", [["t", "bees"]]);
const came = new Promise((resolve) => {
  let historyEnded = false;
  reader.subscribe([{ "#t": ["bees"], authors: [author] }], {
    onevent: (event) => historyEnded && resolve(event),
    oneose: () => {
      historyEnded = true;
      relay.publish(live);
    },
  });
});
assert.deepEqual(bare(await within("a live event", came)), bare(live));

// Replaceable and addressable events.
for (const [kind, tags] of [[0, []], [30023, [["d", "article"]]]]) {
  const [old, fresh] = [event(kind, 2, "old", tags), event(kind, 1, "new", tags)];
  await within("OK", relay.publish(old));
  await within("OK", relay.publish(fresh));
  const newest = await fetch(reader, [{ authors: [author], kinds: [kind] }]);
  assert.deepEqual(newest.map((event) => event.id), [fresh.id]);
}

// Refused, with a reason.
await assert.rejects(within("OK", relay.publish(event(1, -10_000, "too early"))), /invalid: /);

relay.close();
reader.close();
console.log(`nostr-tools and ${url} understand each other`);
