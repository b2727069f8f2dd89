//! The checksum of an object, which Google Cloud Storage compares.

/// The checksum of each single byte.
const TABLE: [u32; 256] = table();

/// The polynomial of Castagnoli, its bits in reverse.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// CRC-32C.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    let next = |sum: u32, byte: &u8| TABLE[usize::from(sum.to_le_bytes()[0] ^ byte)] ^ (sum >> 8);
    !bytes.iter().fold(u32::MAX, next)
}

const fn table() -> [u32; 256] {
    let (mut table, mut place) = ([0; 256], 0);
    while place < 256 {
        let (mut sum, mut bit) = (place as u32, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 { POLYNOMIAL ^ (sum >> 1) } else { sum >> 1 };
            bit += 1;
        }
        table[place] = sum;
        place += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        assert_eq!((crc32c(b"123456789"), crc32c(b"")), (0xe306_9283, 0));
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
