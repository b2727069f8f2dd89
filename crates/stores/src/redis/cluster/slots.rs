//! The slots of a cluster: which one a key has, and which node has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::Result;
use hapax_net::url::Host;
use redis::Value;

use super::topology::ClusterNode;
use crate::redis::value;

/// The number of slots of every cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: that of its tag, if it has one. A tag stands between the first `{` and the next `}`, and a record
/// key may contain both.
pub(in crate::redis) fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let rest = &key[key.iter().position(|byte| *byte == b'{')? + 1..];
        let tag = &rest[..rest.iter().position(|byte| *byte == b'}')?];
        (!tag.is_empty()).then_some(tag)
    };
    crc16(tag().unwrap_or(key)) % SLOTS
}

/// CRC-16 with the polynomial 0x1021, from 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) ^ u16::from(*byte))])
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < table.len() {
        let mut crc = (at as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
};

/// A part of the reply to `CLUSTER SLOTS`: some slots, and the nodes that have them, the master first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) nodes: Vec<Host>,
}

/// Reads the reply to `CLUSTER SLOTS` of this node.
pub(super) fn parse_ranges(reply: Value, asked: &Host) -> Result<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else { return Err(value::unexpected_reply()) };
    ranges.into_iter().map(|range| parse_range(range, asked).ok_or_else(value::unexpected_reply)).collect()
}

fn parse_range(range: Value, asked: &Host) -> Option<SlotRange> {
    let Value::Array(parts) = range else { return None };
    let mut parts = parts.into_iter();
    let (first, last) = (parse_slot(&parts.next()?)?, parse_slot(&parts.next()?)?);
    let nodes: Vec<Host> = parts.map(|node| parse_node(node, asked)).collect::<Option<_>>()?;
    (first <= last && !nodes.is_empty()).then_some(SlotRange { first, last, nodes })
}

fn parse_slot(value: &Value) -> Option<u16> {
    let Value::Int(slot) = value else { return None };
    u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS)
}

/// A node without a host is the one that was asked, or has its host.
fn parse_node(node: Value, asked: &Host) -> Option<Host> {
    let Value::Array(parts) = node else { return None };
    let mut parts = parts.into_iter();
    let (name, port) = (value::reply_bytes(parts.next()?).ok()?.unwrap_or_default(), parts.next()?);
    let Value::Int(port) = port else { return None };
    // A node whose name is not known to the cluster has a `?`.
    let name = if name.is_empty() { asked.name.clone() } else { text(name).filter(|name| name != "?")? };
    Some(Host { name, port: u16::try_from(port).ok()? })
}

fn text(bytes: Bytes) -> Option<String> {
    String::from_utf8(bytes.into()).ok()
}

/// A master and its replicas.
#[derive(Clone)]
pub(super) struct ClusterShard {
    pub(super) master: Arc<ClusterNode>,
    pub(super) replicas: Vec<Arc<ClusterNode>>,
}

/// Which node has which slot, as far as this process knows.
#[derive(Default)]
pub(in crate::redis) struct SlotMap {
    /// At the number of the slot. Empty if no node has told the slots yet.
    owners: Vec<Option<Arc<ClusterNode>>>,
    shards: Vec<ClusterShard>,
}

impl SlotMap {
    /// A map of these ranges, each with its nodes.
    pub(super) fn of(ranges: &[(SlotRange, Vec<Arc<ClusterNode>>)]) -> Self {
        let mut map = Self { owners: vec![None; usize::from(SLOTS)], shards: Vec::new() };
        for (range, nodes) in ranges {
            let Some((master, replicas)) = nodes.split_first() else { continue };
            map.owners[usize::from(range.first)..=usize::from(range.last)].fill(Some(Arc::clone(master)));
            if map.shards.iter().all(|shard| shard.master.number != master.number) {
                map.shards.push(ClusterShard { master: Arc::clone(master), replicas: replicas.to_vec() });
            }
        }
        map
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<ClusterNode>> {
        self.owners.get(usize::from(slot))?.as_ref()
    }

    /// Notes that a slot has moved.
    pub(super) fn set(&mut self, slot: u16, node: Arc<ClusterNode>) {
        self.owners.resize(usize::from(SLOTS), None);
        // A node may name a slot that does not exist.
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = Some(node);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(super) fn shards(&self) -> &[ClusterShard] {
        &self.shards
    }

    /// The nodes that have slots, each once, by their addresses.
    pub(super) fn masters(&self) -> Vec<Arc<ClusterNode>> {
        let named = self.owners.iter().flatten().map(|owner| (owner.number, owner));
        let mut masters: Vec<_> = named.collect::<BTreeMap<_, _>>().into_values().cloned().collect();
        masters.sort_by_key(|master| master.address.to_string());
        masters
    }

    /// The number of slots that no node has.
    pub(super) fn unowned(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }

    /// Whether the node with this number has the slot.
    pub(in crate::redis) fn has(&self, number: usize, slot: u16) -> bool {
        self.owner(slot).is_some_and(|owner| owner.number == number)
    }

    /// Whether the node with this number has any slot.
    pub(in crate::redis) fn has_slots(&self, number: usize) -> bool {
        self.owners.iter().flatten().any(|owner| owner.number == number)
    }

    /// The nodes that have taken over from a master of this map in the next one: its replicas, as far as they are
    /// known, and nodes that had no slot before and have one of a master that has none now.
    pub(super) fn promoted(&self, next: &Self) -> BTreeSet<usize> {
        let both = self.owners.iter().zip(&next.owners);
        let both = both.filter_map(|(old, new)| Some((old.as_ref()?.number, new.as_ref()?.number)));
        let changed: BTreeSet<_> = both.filter(|(old, new)| old != new).collect();
        let successors = changed.into_iter().filter(|(old, new)| !next.has_slots(*old) && !self.has_slots(*new));
        let listed = next.shards.iter().map(|shard| shard.master.number).filter(|master| {
            self.shards.iter().any(|shard| shard.replicas.iter().any(|replica| replica.number == *master))
        });
        successors.map(|(_, new)| new).chain(listed).collect()
    }

    /// The slots of a node, in ranges.
    pub(super) fn ranges_of(&self, number: usize) -> Vec<(u16, u16)> {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for slot in (0..SLOTS).filter(|slot| self.has(number, *slot)) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        ranges
    }

    /// A number that differs if a slot has another owner. The same in every process.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut before: Option<&Arc<ClusterNode>> = None;
        for (slot, owner) in (0_u16..).zip(&self.owners) {
            let owner = owner.as_ref();
            if owner.map(|owner| owner.number) == before.map(|before| before.number) {
                continue;
            }
            let name = owner.map(|owner| owner.address.to_string()).unwrap_or_default();
            for byte in slot.to_be_bytes().iter().chain(name.as_bytes()) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
            before = owner;
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::runtime::Tokio;

    use super::*;
    use crate::redis::RedisUrl;
    use crate::redis::cluster::topology::ClusterTopology;

    #[test]
    fn a_key_has_the_slot_that_the_server_computes() {
        // As the servers answer CLUSTER KEYSLOT.
        for (key, expected) in [
            (&b""[..], 0),
            (b"foo", 12_182),
            (b"123456789", 0x31c3),
            (b"{foo}bar", 12_182),
            (b"bar{foo}", 12_182),
            (b"x{foo}{bar}", 12_182),
        ] {
            assert_eq!(slot(key), expected, "{key:?}");
        }
        assert_ne!(slot(b"{}foo"), slot(b"foo"), "an empty tag is none");
        assert_eq!(slot(b"{}foo"), crc16(b"{}foo") % SLOTS);
        assert_eq!(slot(b"}foo{"), crc16(b"}foo{") % SLOTS);
        assert_eq!(slot(b"{{foo}}"), slot(b"{foo"), "up to the first brace that closes");
    }

    fn named(number: usize) -> Arc<ClusterNode> {
        let url: RedisUrl = "redis+cluster://127.0.0.1".parse().unwrap();
        let topology = ClusterTopology::new(Arc::new(url), Arc::new(Tokio::current()));
        let node = |n: usize| topology.node(Host { name: format!("n{n}"), port: 1 });
        (0..=number).map(node).last().unwrap()
    }

    /// A map of a half of the slots for each of two shards, named by the numbers of their nodes.
    fn halves(first: &[usize], second: &[usize]) -> SlotMap {
        let range = |first, last| SlotRange { first, last, nodes: Vec::new() };
        let nodes = |numbers: &[usize]| numbers.iter().copied().map(named).collect::<Vec<_>>();
        SlotMap::of(&[(range(0, 8191), nodes(first)), (range(8192, 16_383), nodes(second))])
    }

    #[tokio::test]
    async fn a_takeover_is_told_from_a_move() {
        let before = halves(&[0, 2], &[1]);
        assert!(before.promoted(&halves(&[0, 2], &[1])).is_empty());
        assert_eq!(before.promoted(&halves(&[2], &[1])), [2].into(), "a replica that was known");
        assert_eq!(before.promoted(&halves(&[0], &[3, 1])), [3].into(), "a replica that came later");
        assert!(before.promoted(&halves(&[0], &[0])).is_empty(), "its slots were given to the other master");
        let mut moving = halves(&[0], &[1]);
        moving.set(0, named(3));
        assert!(before.promoted(&moving).is_empty(), "one slot was given to a new master");
        moving.set(u16::MAX, named(3));
        assert_eq!(moving.owners.len(), usize::from(SLOTS), "there is no such slot");
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".into()), Value::Array(Vec::new())])
    }

    #[test]
    fn a_node_without_a_host_is_where_the_answer_came_from() {
        let asked = Host { name: "a.example".into(), port: 7000 };
        let named = Value::BulkString(b"b.example".into());
        for (host, name) in
            [(Value::Nil, "a.example"), (Value::BulkString(Vec::new()), "a.example"), (named, "b.example")]
        {
            let range = Value::Array(vec![Value::Int(0), Value::Int(9), node(host, 7001)]);
            let expected = SlotRange { first: 0, last: 9, nodes: vec![Host { name: name.into(), port: 7001 }] };
            assert_eq!(parse_ranges(Value::Array(vec![range]), &asked).unwrap(), [expected]);
        }
        for (first, last) in [(9, 0), (0, 16_384), (-1, 0)] {
            let range = Value::Array(vec![Value::Int(first), Value::Int(last), node(Value::Nil, 1)]);
            assert!(parse_ranges(Value::Array(vec![range]), &asked).is_err(), "{first} to {last}");
        }
    }
}
