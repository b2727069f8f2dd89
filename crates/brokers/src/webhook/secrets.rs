//! Secrets and signatures, as Standard Webhooks says.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The length of a key in bytes, as Standard Webhooks says.
const KEY_LEN: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret that signs webhooks: `whsec_` and 24 to 64 bytes in base64. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(String);

impl WebhookSecret {
    /// A secret as its text. [`WebhookSink::open`](crate::WebhookSink::open) checks it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secrets of a file: one a line. Empty lines and lines that begin with `#` count for nothing.
    pub fn from_lines(text: &str) -> Vec<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(Self::new).collect()
    }

    /// The bytes of the key, or what is wrong with the text.
    fn key(&self) -> Result<Vec<u8>, &'static str> {
        let text = self.0.trim();
        if text.starts_with("whsk_") || text.starts_with("whpk_") {
            return Err("is a key of the asymmetric scheme; only `whsec_` secrets are used");
        }
        let key = STANDARD.decode(text.strip_prefix("whsec_").unwrap_or(text));
        match key.map_err(|_| "is not `whsec_` and base64")? {
            key if key.is_empty() => Err("is empty"),
            key if !KEY_LEN.contains(&key.len()) => Err("does not have 24 to 64 bytes in base64"),
            key => Ok(key),
        }
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(***)")
    }
}

/// Signs requests with every secret of an endpoint.
pub(super) struct Signer(Vec<Hmac<Sha256>>);

impl Signer {
    /// # Errors
    /// What is wrong with which secret, counted from 1. The text shows nothing of a secret.
    pub(super) fn new(secrets: &[WebhookSecret]) -> Result<Self, String> {
        if secrets.is_empty() {
            return Err("it has no secret; webhooks are always signed".into());
        }
        let signer = |(number, secret): (usize, &WebhookSecret)| {
            let key = secret.key().map_err(|what| format!("secret {} {what}", number + 1))?;
            Ok(Hmac::new_from_slice(&key).expect("HMAC takes keys of every length"))
        };
        secrets.iter().enumerate().map(signer).collect::<Result<_, _>>().map(Self)
    }

    /// The value of `webhook-signature`: one signature for each secret, with a space between them.
    pub(super) fn sign(&self, id: &str, timestamp: u32, body: &[u8]) -> String {
        let head = format!("{id}.{timestamp}.");
        let sign = |keyed: &Hmac<Sha256>| {
            let mut mac = keyed.clone();
            mac.update(head.as_bytes());
            mac.update(body);
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        };
        self.0.iter().map(sign).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn the_example_of_the_specification_has_its_signature() {
        let signer = Signer::new(&[WebhookSecret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]).unwrap();
        let signature = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn every_secret_signs_in_its_order() {
        let texts = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "C2FVsBQIhrscChlQIMV+b5sSYspob7oD"];
        let secrets = texts.map(WebhookSecret::new);
        let both = Signer::new(&secrets).unwrap().sign("a", 7, b"body");
        let one_by_one = secrets.map(|secret| Signer::new(&[secret]).unwrap().sign("a", 7, b"body"));
        assert_eq!(both, one_by_one.join(" "));
        assert_ne!(one_by_one[0], one_by_one[1]);
    }

    #[test]
    fn a_secret_that_cannot_sign_is_named_by_its_number_and_not_shown() {
        let good = WebhookSecret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        for (text, what) in [
            ("whsec_", "secret 2 is empty"),
            ("", "secret 2 is empty"),
            ("whsec_!!verysecret", "secret 2 is not `whsec_` and base64"),
            ("whsec_dmVyeXNlY3JldA==", "secret 2 does not have 24 to 64 bytes in base64"),
            ("whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "secret 2 is a key of the asymmetric scheme"),
        ] {
            let error = Signer::new(&[good.clone(), WebhookSecret::new(text)]).err().unwrap();
            assert!(error.starts_with(what), "{text}: {error}");
            assert!(!error.contains("secret!") && !error.contains("dmVy") && !error.contains("MfKQ"), "{error}");
        }
        assert!(Signer::new(&[]).is_err());
        assert_eq!(format!("{good:?}"), "WebhookSecret(***)");
    }

    #[test]
    fn a_file_has_one_secret_a_line() {
        let secrets = WebhookSecret::from_lines("# since May\nwhsec_b25l\n\n  whsec_dHdv  \r\n");
        assert_eq!(secrets, ["whsec_b25l", "whsec_dHdv"].map(WebhookSecret::new));
    }
}
