/// Two lower-case digits a byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        digits.extend([byte >> 4, byte & 15].map(|half| DIGITS[usize::from(half)]));
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_two_digits() {
        assert_eq!(hex(&[0x00, 0x0f, 0xa0, 0xff, 0x5b]), "000fa0ff5b");
    }
}
