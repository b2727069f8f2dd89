use std::time::Duration;

use hapax_core::Owner;
use hapax_core::machine::Lapse;

/// A step that is run on both stores.
#[derive(Clone, Debug)]
pub(super) enum DifferentialStep {
    Call(ProtocolCall),
    /// Move the clocks until the lease of this key's record has expired.
    Lapse(usize),
    /// Move the clocks until this key's record has expired.
    Expire(usize),
    Forward(Duration),
    Back(Duration),
}

/// A call of the protocol. Keys, grants and tokens are indices, because each store has its own.
#[derive(Clone, Debug)]
pub(super) enum ProtocolCall {
    Begin { key: usize, owner: Owner, payload: u8, on_lapse: Lapse },
    Renew { grant: usize },
    Complete { grant: usize, answer: u8, is_old: bool },
    Release { grant: usize },
    Cancel { key: usize, owner: Owner },
    Abandon { grant: usize },
    Bury { grant: usize },
    Hold { key: usize, token: usize },
    ResolveDone { key: usize, token: usize, answer: u8 },
    ResolveNotDone { key: usize, token: usize },
    Reopen { key: usize, token: usize },
}

/// Draws steps from a seed.
pub(super) struct SeededRandom {
    state: u64,
    /// Whether records expire in this sequence. If they do, the clock never steps back: that would bring expired
    /// records back.
    expires: bool,
}

impl SeededRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed, expires: seed.is_multiple_of(2) }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).expect("smaller than a usize")
    }

    pub(super) fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    fn owner(&mut self) -> Owner {
        Owner([u8::try_from(self.between(1, 3)).expect("a small number"); 16])
    }

    /// An index, mostly one of the latest: older grants and tokens rarely change anything.
    fn recent(&mut self, count: usize) -> usize {
        if self.below(3) == 0 { self.below(count) } else { count.saturating_sub(1 + self.below(2)) }
    }

    /// Draws the next step, given the numbers of grants and tokens so far.
    pub(super) fn step(&mut self, grants: usize, tokens: [usize; 2]) -> DifferentialStep {
        let key = self.below(2);
        match self.below(100) {
            0..6 => DifferentialStep::Lapse(key),
            6..9 if self.expires => DifferentialStep::Expire(key),
            6..9 => DifferentialStep::Back(Duration::from_secs(3600)),
            9..14 => DifferentialStep::Forward(Duration::from_secs(10)),
            14..45 => DifferentialStep::Call(self.begin(key)),
            45..54 if tokens[key] > 0 => DifferentialStep::Call(self.operator_call(key, tokens[key])),
            _ if grants > 0 => DifferentialStep::Call(self.holder_call(key, grants)),
            _ => DifferentialStep::Call(self.begin(key)),
        }
    }

    fn begin(&mut self, key: usize) -> ProtocolCall {
        let payload = u8::from(self.below(8) == 0);
        let on_lapse = if self.below(2) == 0 { Lapse::Retry } else { Lapse::Hold };
        ProtocolCall::Begin { key, owner: self.owner(), payload, on_lapse }
    }

    fn holder_call(&mut self, key: usize, grants: usize) -> ProtocolCall {
        let grant = self.recent(grants);
        match self.below(20) {
            0..5 => ProtocolCall::Renew { grant },
            5..10 => ProtocolCall::Complete { grant, answer: self.answer(), is_old: self.below(6) == 0 },
            10..13 => ProtocolCall::Release { grant },
            13..15 => ProtocolCall::Cancel { key, owner: self.owner() },
            15..18 => ProtocolCall::Abandon { grant },
            _ => ProtocolCall::Bury { grant },
        }
    }

    fn operator_call(&mut self, key: usize, tokens: usize) -> ProtocolCall {
        let token = self.recent(tokens);
        match self.below(4) {
            0 => ProtocolCall::Hold { key, token },
            1 => ProtocolCall::ResolveDone { key, token, answer: self.answer() },
            2 => ProtocolCall::ResolveNotDone { key, token },
            _ => ProtocolCall::Reopen { key, token },
        }
    }

    fn answer(&mut self) -> u8 {
        u8::try_from(self.below(3)).expect("a small number")
    }
}

/// Hashes the numbers to 16 bytes.
pub(super) fn hash_numbers(numbers: &[u64]) -> [u8; 16] {
    let mut random =
        SeededRandom::new(numbers.iter().fold(0, |state, number| SeededRandom::new(state ^ number).next()));
    let mut bytes = [0; 16];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.next().to_be_bytes()));
    bytes
}
