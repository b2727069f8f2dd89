//! A scan goes through the masters one after the other.
//!
//! A record must be found although its slot may move meanwhile. So the scan begins again if a slot has got another
//! master since it began. While a slot is on its way, its records go over one by one and the masters stay the same.
//! Then the scan goes through all masters a second time: a record that had not left its old node in time has come to
//! its new one by then.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::store::{Chunk, Scan, ScanPosition};
use hapax_core::{Error, ErrorKind, Result};
use redis::cmd;

use super::topology::ClusterNode;
use super::{Cluster, SlotMap};
use crate::redis::call_error::RedisCallError;
use crate::redis::{Redis, inspection, value};

/// Where a scan is: `fingerprint of the map, pass, number of the master, cursor there`.
struct ClusterPlace {
    fingerprint: u64,
    pass: u8,
    master: u16,
    cursor: Bytes,
}

impl ClusterPlace {
    fn start(fingerprint: u64, pass: u8) -> Self {
        Self { fingerprint, pass, master: 0, cursor: Bytes::from_static(b"0") }
    }

    fn decode(ScanPosition(bytes): &ScanPosition) -> Result<Self> {
        let wrong = || Error::new(ErrorKind::Invalid, "this is no position of a scan of a cluster");
        let (fingerprint, rest) = bytes.split_first_chunk::<8>().ok_or_else(wrong)?;
        let ([pass, high, low], cursor) = rest.split_first_chunk::<3>().ok_or_else(wrong)?;
        let master = u16::from_be_bytes([*high, *low]);
        Ok(Self {
            fingerprint: u64::from_be_bytes(*fingerprint),
            pass: *pass,
            master,
            cursor: Bytes::copy_from_slice(cursor),
        })
    }

    fn encode(&self) -> ScanPosition {
        let mut bytes = self.fingerprint.to_be_bytes().to_vec();
        bytes.push(self.pass);
        bytes.extend(self.master.to_be_bytes());
        bytes.extend(&self.cursor);
        ScanPosition(bytes.into())
    }
}

/// The masters by their addresses, and the fingerprint of their slots.
async fn layout(cluster: &Cluster) -> Result<(u64, Vec<Arc<ClusterNode>>)> {
    if cluster.topology.with_map(SlotMap::is_empty) {
        cluster.topology.refreshed().await?;
    }
    // Both come from the owners of the slots, so that a position never names another master than when it was made.
    Ok(cluster.topology.with_map(|map| (map.fingerprint(), map.masters())))
}

pub(in crate::redis) async fn scan(store: &Redis, cluster: &Cluster, ask: &Scan) -> Result<Chunk> {
    let (fingerprint, masters) = layout(cluster).await?;
    let place = ask.position().map(ClusterPlace::decode).transpose()?;
    let place = place.filter(|place| place.fingerprint == fingerprint);
    let place = place.unwrap_or_else(|| ClusterPlace::start(fingerprint, 0));
    let Some(master) = masters.get(usize::from(place.master)) else {
        return Err(Error::new(ErrorKind::Invalid, "this is no position of a scan of this cluster"));
    };
    let found = inspection::keys(&cluster.link(master, 0), &place.cursor, ask.limit()).await;
    let (cursor, keys) = found.inspect_err(|_| cluster.topology.request_refresh())?;
    let mut chunk = inspection::records(store, ask, &keys).await?;
    let next = match cursor {
        Some(cursor) => Some(ClusterPlace { cursor, ..place }),
        None if usize::from(place.master) + 1 < masters.len() => {
            Some(ClusterPlace { master: place.master + 1, ..ClusterPlace::start(fingerprint, place.pass) })
        }
        None => after_last(cluster, &masters, &place).await?,
    };
    chunk.next = next.map(|next| next.encode());
    Ok(chunk)
}

/// Where to go on after the last master: nowhere, if no slot has moved or is on its way.
async fn after_last(
    cluster: &Cluster,
    masters: &[Arc<ClusterNode>],
    place: &ClusterPlace,
) -> Result<Option<ClusterPlace>> {
    let mut is_moving = false;
    for master in masters {
        let own = own_slots(cluster, master).await?;
        if own.ranges != cluster.topology.with_map(|map| map.ranges_of(master.number)) {
            cluster.topology.refreshed().await?;
            let (fingerprint, _) = layout(cluster).await?;
            return Ok(Some(ClusterPlace::start(fingerprint, 0)));
        }
        is_moving |= own.is_moving;
    }
    Ok((is_moving && place.pass == 0).then(|| ClusterPlace::start(place.fingerprint, 1)))
}

/// The slots of a node, as it names them itself.
#[derive(Debug, PartialEq, Eq)]
struct OwnSlots {
    ranges: Vec<(u16, u16)>,
    /// Whether a slot is on its way from this node or to it.
    is_moving: bool,
}

async fn own_slots(cluster: &Cluster, node: &ClusterNode) -> Result<OwnSlots, RedisCallError> {
    let mut command = cmd("CLUSTER");
    command.arg("NODES");
    let judge = |reply| {
        let nodes = value::reply_bytes(reply)?.unwrap_or_default();
        parse_own_slots(&String::from_utf8_lossy(&nodes)).ok_or_else(value::unexpected_reply)
    };
    cluster.link(node, 0).call(&command, judge).await
}

/// Reads the line of the node itself in its reply to `CLUSTER NODES`: `id address flags master … state slots …`.
fn parse_own_slots(nodes: &str) -> Option<OwnSlots> {
    let own = nodes
        .lines()
        .find(|line| line.split(' ').nth(2).is_some_and(|flags| flags.split(',').any(|flag| flag == "myself")))?;
    let (mut ranges, mut is_moving) = (Vec::new(), false);
    for word in own.split_whitespace().skip(8) {
        if word.starts_with('[') {
            is_moving = true;
            continue;
        }
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        ranges.push((first.parse().ok()?, last.parse().ok()?));
    }
    Some(OwnSlots { ranges, is_moving })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place =
            ClusterPlace { fingerprint: u64::MAX - 7, pass: 1, master: 515, cursor: b"12345".as_slice().into() };
        let read = ClusterPlace::decode(&place.encode()).unwrap();
        assert_eq!((read.fingerprint, read.pass, read.master), (place.fingerprint, 1, 515));
        assert_eq!(read.cursor, place.cursor);
        assert!(ClusterPlace::decode(&ScanPosition(b"12345".as_slice().into())).is_err());
    }

    #[test]
    fn a_node_tells_its_slots_and_which_are_moving() {
        let other = "07c3 127.0.0.1:7002@17002 master - 0 1426 2 connected 5461-10922";
        let own =
            |slots: &str| format!("{other}\ne7d1 127.0.0.1:7001@17001,name myself,master - 0 0 1 connected{slots}\n");
        let read = |slots| parse_own_slots(&own(slots)).unwrap();
        assert_eq!(read(" 0-5460 5463"), OwnSlots { ranges: vec![(0, 5460), (5463, 5463)], is_moving: false });
        assert_eq!(read(" 0-5460 [93->-292f]"), OwnSlots { ranges: vec![(0, 5460)], is_moving: true });
        assert_eq!(read(""), OwnSlots { ranges: Vec::new(), is_moving: false });
        assert_eq!(parse_own_slots(other), None);
    }
}
