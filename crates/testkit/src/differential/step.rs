use std::time::Duration;

use hapax_core::Owner;
use hapax_core::machine::Lapse;

/// What is done to both stores.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Ask(Ask),
    /// Until the lease of a record is over.
    Lapse(usize),
    /// Until its life is.
    Expire(usize),
    Forward(Duration),
    Back(Duration),
}

/// What both are asked. Keys, grants and tokens are numbers: each store has its own.
#[derive(Clone, Debug)]
pub(super) enum Ask {
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

/// Everything that is left to chance, from a seed.
pub(super) struct Draw {
    state: u64,
    /// Whether records expire in this sequence. A clock that steps back may bring those to life again that have not been swept, so
    /// there it does not.
    expires: bool,
}

impl Draw {
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

    /// Mostly one of the later ones: that is where the life is.
    fn recent(&mut self, count: usize) -> usize {
        if self.below(3) == 0 { self.below(count) } else { count.saturating_sub(1 + self.below(2)) }
    }

    /// The next step, where there are so many grants and tokens to choose from.
    pub(super) fn step(&mut self, grants: usize, tokens: [usize; 2]) -> Step {
        let key = self.below(2);
        match self.below(100) {
            0..6 => Step::Lapse(key),
            6..9 if self.expires => Step::Expire(key),
            6..9 => Step::Back(Duration::from_secs(3600)),
            9..14 => Step::Forward(Duration::from_secs(10)),
            14..45 => Step::Ask(self.begin(key)),
            45..54 if tokens[key] > 0 => Step::Ask(self.of_operator(key, tokens[key])),
            _ if grants > 0 => Step::Ask(self.of_holder(key, grants)),
            _ => Step::Ask(self.begin(key)),
        }
    }

    fn begin(&mut self, key: usize) -> Ask {
        let payload = u8::from(self.below(8) == 0);
        let on_lapse = if self.below(2) == 0 { Lapse::Retry } else { Lapse::Hold };
        Ask::Begin { key, owner: self.owner(), payload, on_lapse }
    }

    fn of_holder(&mut self, key: usize, grants: usize) -> Ask {
        let grant = self.recent(grants);
        match self.below(20) {
            0..5 => Ask::Renew { grant },
            5..10 => Ask::Complete { grant, answer: self.answer(), is_old: self.below(6) == 0 },
            10..13 => Ask::Release { grant },
            13..15 => Ask::Cancel { key, owner: self.owner() },
            15..18 => Ask::Abandon { grant },
            _ => Ask::Bury { grant },
        }
    }

    fn of_operator(&mut self, key: usize, tokens: usize) -> Ask {
        let token = self.recent(tokens);
        match self.below(4) {
            0 => Ask::Hold { key, token },
            1 => Ask::ResolveDone { key, token, answer: self.answer() },
            2 => Ask::ResolveNotDone { key, token },
            _ => Ask::Reopen { key, token },
        }
    }

    fn answer(&mut self) -> u8 {
        u8::try_from(self.below(3)).expect("a small number")
    }
}

/// 16 bytes that these numbers lead to, and hardly any others.
pub(super) fn mixed(numbers: &[u64]) -> [u8; 16] {
    let mut draw = Draw::new(numbers.iter().fold(0, |state, number| Draw::new(state ^ number).next()));
    let mut bytes = [0; 16];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&draw.next().to_be_bytes()));
    bytes
}
