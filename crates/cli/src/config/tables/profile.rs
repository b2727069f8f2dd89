//! Profiles: named sets of ordinary settings, for APIs whose clients expect a known contract. Each value that a user
//! gives takes precedence over that of the profile.

use anyhow::bail;

/// A named set of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    /// The values, by flag. Several for a list.
    pub(crate) values: &'static [(&'static str, &'static [&'static str])],
}

/// The contract of the draft of the IETF, which is that of the defaults.
const IETF: Profile = Profile {
    name: "ietf",
    values: &[
        ("protect-method", &["POST", "PATCH"]),
        ("problem-format", &["problem+json"]),
        ("key", &["required"]),
        ("key-from", &["header:Idempotency-Key"]),
        ("key-grammar", &["lenient"]),
    ],
};

/// The contract that the libraries of Stripe expect from its API. They retry 409 and 5xx, read errors in one shape, and
/// send no key with some requests.
const STRIPE: Profile = Profile {
    name: "stripe",
    values: &[
        ("protect-method", &["POST", "DELETE"]),
        ("problem-format", &[STRIPE_ERROR]),
        ("tenant", &["authorization", "optional-header:Stripe-Account"]),
        ("key", &["optional"]),
        ("key-from", &["header:Idempotency-Key"]),
        ("not-applied", &["409"]),
        ("final", &["500"]),
        (
            "store-header",
            &["Request-Id", "Stripe-Version", "Stripe-Account", "Stripe-Should-Retry", "Original-Request"],
        ),
    ],
};

const STRIPE_ERROR: &str = "json:{\"error\":{\"type\":\"idempotency_error\",\"code\":\"{name}\",\
                            \"message\":\"{detail}\",\"doc_url\":\"{type}\"}}";

/// Reads the name of a profile.
pub(crate) fn profile(text: &str) -> Result<Profile, anyhow::Error> {
    let known = [IETF, STRIPE];
    match known.iter().find(|profile| profile.name == text) {
        Some(profile) => Ok(*profile),
        None => bail!("write one of: {}", known.map(|profile| profile.name).join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tables::Configured;

    #[test]
    fn a_profile_has_ordinary_settings_of_a_gateway() {
        for profile in [IETF, STRIPE] {
            for (flag, values) in profile.values {
                let setting = Configured::Gateway.settings().find(|setting| setting.flag == *flag);
                let setting = setting.unwrap_or_else(|| panic!("{flag} is no setting"));
                assert!(setting.is_list || values.len() == 1, "{flag}");
            }
        }
        assert_eq!(profile("stripe").unwrap(), STRIPE);
        assert!(profile("paypal").is_err());
    }
}
