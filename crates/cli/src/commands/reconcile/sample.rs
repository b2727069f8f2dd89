use std::collections::BTreeSet;

use hapax::RecordKey;

/// A random sample of record keys. Record keys are hashes, so those that are nearest to a random one are random.
#[derive(Debug)]
pub(super) struct RecordSample {
    size: usize,
    center: u64,
    nearest: BTreeSet<(u64, RecordKey)>,
}

impl RecordSample {
    pub(super) fn new(size: usize, center: u64) -> Self {
        Self { size, center, nearest: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, rk: RecordKey) {
        let head: [u8; 8] = rk.as_bytes()[..8].try_into().expect("a record key has 16 bytes");
        self.nearest.insert((u64::from_be_bytes(head) ^ self.center, rk));
        if self.nearest.len() > self.size {
            self.nearest.pop_last();
        }
    }

    pub(super) fn take(&mut self) -> Vec<RecordKey> {
        std::mem::take(&mut self.nearest).into_iter().map(|(_, rk)| rk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_its_size_whatever_it_is_chosen_from() {
        let keys = |count: u16| {
            let mut sample = RecordSample::new(10, 0x5555);
            // As a scan may, it names each record twice.
            for n in (0..count).chain(0..count) {
                let mut bytes = [0; 16];
                bytes[..2].copy_from_slice(&n.wrapping_mul(40_503).to_be_bytes());
                sample.add(RecordKey::from_bytes(bytes));
            }
            sample.take().len()
        };
        assert_eq!((keys(0), keys(7), keys(1000)), (0, 7, 10));
    }
}
