use super::*;

const MARK: FileMark = FileMark(*b"sixteen of these");

const PLACE_OF_TESTS: &str = "redis://a:6379/0";
/// The length of the header and of the frame with the place.
const START: usize = 32 + 32 + PLACE_OF_TESTS.len() + 8;

fn new_file(mark: FileMark) -> Frames {
    Frames::after(0, mark, &StorePlace::new(PLACE_OF_TESTS))
}

fn spilled(answer: &[u8], ended: u64) -> Spilled {
    let claim = Claim { owner: Owner([0xa0; 16]), token: Token(0x0102_0304_0506_0708) };
    let complete = Complete {
        claim,
        fingerprint: Fingerprint::from_parts(Rule(7), [0xf0; 12]),
        answer: Bytes::copy_from_slice(answer),
        retention: Seconds(86_400),
        ended: Timestamp(ended),
        age: Duration::from_micros(1_500_000),
    };
    Spilled { rk: RecordKey::from_bytes([0xee; 16]), complete, unknown_retention: Seconds(2_592_000) }
}

/// A file with three entries, and their locations.
fn three() -> (Vec<u8>, Vec<EntryLocation>) {
    let mut frames = new_file(MARK);
    let locations = [b"one".as_slice(), b"", b"three"].map(|answer| frames.push_entry(&spilled(answer, 5))).to_vec();
    (frames.bytes().to_vec(), locations)
}

fn is_in(location: &EntryLocation, at: usize) -> bool {
    (location.position..location.position + location.len).contains(&(at as u64))
}

fn undone(scan: &FileScan) -> Vec<EntryLocation> {
    scan.undone.values().copied().collect()
}

/// A frame according to the documented format, encoded without the code under test.
fn frame(position: u64, version: u8, kind: u8, body: &[u8]) -> Vec<u8> {
    let seal = |bytes: &mut Vec<u8>| {
        let mut sealed = position.to_be_bytes().to_vec();
        sealed.extend_from_slice(bytes);
        bytes.extend_from_slice(&Sha256::digest(sealed)[..8]);
    };
    let mut bytes = b"sixteen of these".to_vec();
    bytes.extend_from_slice(&[version, kind, 0, 0]);
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
    seal(&mut bytes);
    bytes.extend_from_slice(body);
    seal(&mut bytes);
    bytes
}

#[test]
fn the_stored_form_follows_the_documented_format() {
    let mut frames = new_file(MARK);
    let location = frames.push_entry(&spilled(b"the answer", 9));
    frames.push_done(&location);

    let mut file = b"hapaxjnlsixteen of these".to_vec();
    let sealed = [&[0; 8], file.as_slice()].concat();
    file.extend_from_slice(&Sha256::digest(sealed)[..8]);
    let mut body = vec![0xee; 16];
    body.extend_from_slice(&[0xa0; 16]);
    body.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 7]);
    body.extend_from_slice(&[0xf0; 12]);
    body.extend_from_slice(&[0, 1, 0x51, 0x80, 0, 0x27, 0x8d, 0]);
    body.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0x16, 0xe3, 0x60]);
    body.extend_from_slice(b"the answer");
    file.extend_from_slice(&frame(32, 1, 3, PLACE_OF_TESTS.as_bytes()));
    let start = u64::try_from(START).unwrap();
    file.extend_from_slice(&frame(start, 1, 1, &body));
    file.extend_from_slice(&frame(file.len() as u64, 1, 2, &start.to_be_bytes()));
    assert_eq!(frames.bytes(), file);
}

#[test]
fn the_end_is_known_before_an_entry_is_added() {
    let mut frames = new_file(MARK);
    let entry = spilled(b"the answer", 9);
    let end = frames.end_with(&entry).unwrap();
    frames.push_entry(&entry);
    assert_eq!(frames.bytes().len() as u64, end);
}

#[test]
fn a_flipped_byte_loses_only_the_entry_it_is_in() {
    let (file, locations) = three();
    for at in 0..file.len() {
        let mut file = file.clone();
        file[at] ^= 0x10;
        let scan = scan(&file);
        let left: Vec<EntryLocation> = locations.iter().filter(|location| !is_in(location, at)).copied().collect();
        assert_eq!(undone(&scan), left, "flipped at {at}");
        let place = (!(32..START).contains(&at)).then(|| StorePlace::new(PLACE_OF_TESTS));
        assert_eq!(scan.place, place, "flipped at {at}: another place must never be read");
        assert!(scan.damage.is_some(), "flipped at {at}");
        assert_eq!(scan.end, file.len() as u64, "flipped at {at}");
    }
}

#[test]
fn a_file_cut_short_loses_only_the_entry_it_is_cut_in() {
    let (file, locations) = three();
    for len in 0..file.len() {
        let scan = scan(&file[..len]);
        let left: Vec<EntryLocation> =
            locations.iter().filter(|location| location.position + location.len <= len as u64).copied().collect();
        let start = if len < START { 32 } else { START as u64 };
        let end = left.last().map_or(start, |location| location.position + location.len);
        assert_eq!(undone(&scan), left, "cut at {len}");
        assert_eq!(scan.damage, None, "cut at {len}");
        assert_eq!(scan.end, if len < 32 { 0 } else { end }, "cut at {len}");
    }
}

#[test]
fn zeros_after_the_last_frame_are_not_damage() {
    let (mut file, locations) = three();
    let end = file.len() as u64;
    // After a power failure a file may have its new length without the data.
    file.resize(file.len() + 4096, 0);
    let scan = scan(&file);
    assert_eq!((undone(&scan), scan.end), (locations, end));
    assert_eq!(scan.damage, None);
}

/// The author of an answer may know the format, but not the mark of the file.
#[test]
fn an_answer_that_contains_a_frame_is_not_read_as_one_after_damage() {
    // The position at which the answer of the first entry begins.
    let bait = frame((START + 32 + 77) as u64, 1, 1, &[0; 77]);
    let mut frames = new_file(FileMark(*b"some other mark!"));
    let first = frames.push_entry(&spilled(&bait, 5));
    let second = frames.push_entry(&spilled(b"two", 5));
    let mut file = frames.bytes().to_vec();
    file[usize::try_from(first.position).unwrap()] ^= 1;
    assert_eq!(undone(&scan(&file)), [second]);
}

#[test]
fn a_frame_that_was_moved_is_damaged() {
    let (file, locations) = three();
    let [from, to] = [0, 1].map(|n| usize::try_from(locations[n].position).unwrap());
    let moved = [&file[..from], &file[to..], &file[from..to]].concat();
    let scan = scan(&moved);
    assert_eq!((undone(&scan), scan.damage), (vec![], Some(from as u64)));
}

#[test]
fn frames_of_a_later_release_are_skipped_and_reported() {
    for (version, kind) in [(2, 1), (1, 4)] {
        let (mut file, locations) = three();
        file.extend_from_slice(&frame(file.len() as u64, version, kind, b"new"));
        let scan = scan(&file);
        assert_eq!(undone(&scan), locations);
        assert!(scan.has_unknown_frame && scan.damage.is_none());
    }
}

#[test]
fn a_file_in_another_format_is_damaged() {
    let scan = scan(&[b'x'; 1000]);
    assert_eq!((scan.damage, scan.end), (Some(0), 1000));
}
