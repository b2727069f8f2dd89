"""Expected results of key derivation (keys.txt) and record encoding (records.txt).

Written from the definitions alone and without code of the library, so that an
error goes unnoticed only if it is made twice. Regenerate both files with

    python3 derive.py

One case per line: tab-separated name=value fields, bytes in lower-case hex,
an absent value empty; lines starting with # are comments. An empty `secret`
means unkeyed. In `parts`, an empty list is an empty value, and repeat:HEXBYTE:COUNT
is a long part or (with COUNT 0) an empty one.
"""

import hmac
from hashlib import sha256
from pathlib import Path
from uuid import UUID

TAIL = "owner lease_ms lifetime_s attempt expiry_s".split()
IN_PROGRESS, COMPLETED, RELEASED, INDETERMINATE, DEAD = range(1, 6)


def be(value, size):
    return value.to_bytes(size, "big")


def h(secret, *parts):
    """The (keyed, if there is a secret) hash of length-prefixed parts."""
    data = b"".join(be(len(part), 4) + part for part in parts)
    return hmac.digest(secret, data, "sha256") if secret else sha256(data).digest()


def uuid8(data):
    """The head of a SHA-256 with version 8 and the RFC 9562 variant set."""
    head = bytearray(sha256(data).digest()[:16])
    head[6] = head[6] & 0x0F | 0x80
    head[8] = head[8] & 0x3F | 0x80
    return UUID(bytes=bytes(head))


def raw(value):
    return value.encode() if isinstance(value, str) else value


def line(kind, **fields):
    shown = (f"{k}={v.hex() if isinstance(v, bytes) else v}" for k, v in fields.items())
    return "\t".join([f"kind={kind}", *shown])


def record(namespace, tenant, principal, key, secret=b""):
    n, t, p, k = map(raw, (namespace, tenant, principal, key))
    rk = h(secret, b"hapax/rk/v1", n, t, p, k)[:16]
    op = uuid8(b"hapax/op/v1" + rk)
    numbers = (0, 1, 2**32 - 1)
    events = {f"event{i}": uuid8(b"hapax/event/v2" + be(len(n), 4) + n + op.bytes + be(i, 4)) for i in numbers}
    return line("record", secret=secret, namespace=n, tenant=t, principal=p, key=k,
                rk=rk, operation=op, **events)


def fingerprint(*parts, secret=b""):
    parts = [raw(part) for part in parts]
    shown = (p.hex() if 0 < len(p) < 1000 else f"repeat:{p[:1].hex() or '00'}:{len(p)}" for p in parts)
    digest = h(secret, b"hapax/fp/v1", *parts)[:12]
    return line("fingerprint", secret=secret, parts=",".join(shown), fingerprint=digest)


def tenant(value, secret=b""):
    value = raw(value)
    return line("tenant", secret=secret, value=value, digest=h(secret, b"hapax/tenant/v1", value))


def pin(namespace, secret=b""):
    """The record that pins a namespace to an identity: the secret is in its fingerprint, not in its key."""
    rk = h(b"", b"hapax/identity", raw(namespace))[:16]
    digest = h(secret, b"hapax/fp/v1", b"hapax/identity")[:12]
    return line("pin", secret=secret, namespace=raw(namespace), rk=rk, fingerprint=digest)


def header(name, state, rk=sha256(b"rk").digest()[:16], takeover=0, codec=0, rule=1, token=1,
           fingerprint=sha256(b"fp").digest()[:12], answer=b"", **given):
    """One golden record: its fields and the bytes that encode them."""
    done = state == COMPLETED
    usual = dict(expiry_s=1_800_000_000) if done else dict(
        owner=bytes(range(0xA0, 0xB0)), lease_ms=30_000, lifetime_s=86_400, attempt=1)
    f = usual | given
    assert f.keys() == usual.keys() and (done or not answer), name
    head = bytes([1, state, takeover << 7 | codec, rule]) + be(token, 8) + fingerprint
    if done:
        head += be(f["expiry_s"], 4)
    else:
        head += f["owner"] + be(f["lease_ms"], 4) + be(f["lifetime_s"], 4) + be(f["attempt"], 2)
    encoded = head + sha256(rk + head + answer).digest()[:8] + answer
    assert len(encoded) == (36 + len(answer) if done else 58), name
    return line("record_v1", name=name, rk=rk, state=state, takeover=takeover, codec=codec, rule=rule,
                token=token, fingerprint=fingerprint, **{k: f.get(k, "") for k in TAIL},
                answer=answer, bytes=encoded)


COUNTING, ONES = bytes(range(32)), b"\xff" * 32

KEYS = [
    "# An ordinary key, without and with each secret.",
    record("orders", "acme", "alice", "order-1"),
    record("orders", "acme", "alice", "order-1", COUNTING),
    record("orders", "acme", "alice", "order-1", ONES),
    "# An empty principal and none at all are the same key; an empty tenant is not an empty principal.",
    record("orders", "acme", "", "order-1"),
    record("orders", "", "acme", "order-1"),
    record("", "", "", ""),
    "# The same bytes, divided differently.",
    record("ns", "ab", "", "c"),
    record("ns", "a", "", "bc"),
    record("ns", "a", "b", "c"),
    record("nsa", "b", "", "c"),
    "# NUL bytes, an emoji sequence, the longest key.",
    record("ns", "a\0", "\0", "\0b\0"),
    record("ns", "a", "", "\U0001F469\u200D\U0001F680"),
    record("ns", "a", "", "k" * 255),
    "# Keys are bytes: case, trailing space and normal form (NFC, then NFD) all count.",
    record("ns", "a", "", "caf\u00E9"),
    record("ns", "a", "", "cafe\u0301"),
    record("ns", "a", "", "CAF\u00C9"),
    record("ns", "a", "", "caf\u00E9 "),
    "# Fingerprints: no part, one empty part, two; boundaries; bytes; a long part; keyed.",
    fingerprint(),
    fingerprint(""),
    fingerprint("", ""),
    fingerprint("ab", "c"),
    fingerprint("a", "bc"),
    fingerprint("abc"),
    fingerprint("abc", ""),
    fingerprint(b"\x00\xff,\t\n", "POST"),
    fingerprint("x" * 100_000),
    fingerprint("ab", "c", secret=COUNTING),
    fingerprint(secret=ONES),
    "# Tenant digests.",
    tenant("acme"),
    tenant(""),
    tenant("acme", COUNTING),
    "# Pins of a namespace.",
    pin("payments"),
    pin("payments", COUNTING),
    pin("payments", ONES),
]

RECORDS = [
    "# Each state; then the same fields under another record key, where only the check differs.",
    header("in_progress", IN_PROGRESS),
    header("completed", COMPLETED, answer=b'{"ok":true}'),
    header("released", RELEASED, token=2, attempt=2),
    header("indeterminate", INDETERMINATE, token=3, attempt=3),
    header("dead", DEAD, token=9, attempt=5),
    header("other_key", IN_PROGRESS, rk=sha256(b"other rk").digest()[:16]),
    "# Got by takeover; abandoned (no lease left); no fingerprint.",
    header("takeover", IN_PROGRESS, takeover=1, token=2, attempt=2),
    header("completed_takeover", COMPLETED, takeover=1, token=2, answer=b"done"),
    header("abandoned", IN_PROGRESS, lease_ms=0),
    header("no_fingerprint", IN_PROGRESS, rule=0, fingerprint=bytes(12)),
    "# Answers: none, and bytes that are no text.",
    header("completed_empty", COMPLETED),
    header("completed_binary", COMPLETED, answer=b"\x00\xff\x00\t\n\r=\xff\x00"),
    "# Integers: past what a double holds, and the largest of each.",
    header("token_past_double", IN_PROGRESS, token=2**53 + 1),
    header("largest", IN_PROGRESS, rule=255, token=2**64 - 1,
           lease_ms=2**32 - 1, lifetime_s=2**32 - 1, attempt=2**16 - 1),
    header("completed_largest", COMPLETED, rule=255, token=2**64 - 1, expiry_s=2**32 - 1),
    "# An answer outside of the store: version, length, hash and path of the answer `charged 5`.",
    header("completed_pointer", COMPLETED, codec=1,
           answer=bytes([1]) + be(9, 8) + sha256(b"charged 5").digest() + b"answers/da/1"),
    "# What this release does not write.",
    header("codec_largest", COMPLETED, takeover=1, codec=15, answer=b"packed"),
]

for name, lines in {"keys.txt": KEYS, "records.txt": RECORDS}.items():
    Path(__file__).with_name(name).write_bytes("\n".join([*lines, ""]).encode())
