//! The header fields with which a request is signed: version 4 of the signatures of AWS.

use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode,
    sign,
};
use aws_sigv4::sign::v4::SigningParams;
use hapax_core::{BoxError, Timestamp};

/// The name of S3 in signatures.
pub(crate) const S3: &str = "s3";

/// A request that is to be signed.
pub(super) struct UnsignedRequest<'a> {
    pub(super) method: &'a str,
    pub(super) uri: &'a str,
    pub(super) fields: &'a [(&'a str, &'a str)],
    pub(super) body: &'a [u8],
    pub(super) region: &'a str,
    /// The name of the service in signatures.
    pub(super) service: &'a str,
    pub(super) time: Timestamp,
}

impl UnsignedRequest<'_> {
    /// The fields that a request gets beside its own.
    pub(super) fn signature(&self, credentials: &Credentials) -> Result<Vec<(String, String)>, BoxError> {
        let identity = credentials.clone().into();
        let params = SigningParams::builder()
            .identity(&identity)
            .region(self.region)
            .name(self.service)
            .time(UNIX_EPOCH + Duration::from_micros(self.time.0))
            .settings(self.settings())
            .build()?
            .into();
        let body = SignableBody::Bytes(self.body);
        let request = SignableRequest::new(self.method, self.uri, self.fields.iter().copied(), body)?;
        let (signature, _) = sign(request, &params)?.into_parts();
        let (fields, _) = signature.into_parts();
        Ok(fields.into_iter().map(|field| (field.name().to_owned(), field.value().to_owned())).collect())
    }

    /// S3 differs from all other services: the hash of the body is a field, and the path is signed as it is.
    fn settings(&self) -> SigningSettings {
        let mut settings = SigningSettings::default();
        if self.service == S3 {
            settings.percent_encoding_mode = PercentEncodingMode::Single;
            settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
            settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2015-08-30 12:36:00 UTC, as in the examples of AWS.
    const TIME: Timestamp = Timestamp(1_440_938_160_000_000);

    const TOKEN: &str = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfI\
        eoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFv\
        lRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIl\
        TJabIQwj2ICCR/oLxBA==";

    fn signature(fields: &[(&str, &str)], body: &str, token: Option<&str>) -> String {
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let credentials = Credentials::new("AKIDEXAMPLE", secret, token.map(str::to_owned), None, "test");
        let (uri, region, service) = ("http://example.amazonaws.com/", "us-east-1", "service");
        let (method, body) = ("POST", body.as_bytes());
        let request = UnsignedRequest { method, uri, fields, body, region, service, time: TIME };
        let signed = request.signature(&credentials).unwrap();
        let value = |name: &str| signed.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).unwrap().1.clone();
        assert_eq!(value("x-amz-date"), "20150830T123600Z");
        if let Some(token) = token {
            assert_eq!(value("x-amz-security-token"), token);
        }
        value("authorization")
    }

    #[test]
    fn the_examples_of_aws_have_their_signatures() {
        const HOST: (&str, &str) = ("host", "example.amazonaws.com");
        const SCOPE: &str = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request";
        assert_eq!(
            signature(&[HOST], "", None),
            format!(
                "{SCOPE}, SignedHeaders=host;x-amz-date, \
                 Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
            )
        );
        assert_eq!(
            signature(&[HOST], "", Some(TOKEN)),
            format!(
                "{SCOPE}, SignedHeaders=host;x-amz-date;x-amz-security-token, \
                 Signature=85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"
            )
        );
        let fields = [
            ("content-type", "application/x-www-form-urlencoded"),
            HOST,
            ("content-length", "13"),
            ("x-amz-content-sha256", "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e"),
        ];
        assert_eq!(
            signature(&fields, "Param1=value1", None),
            format!(
                "{SCOPE}, SignedHeaders=content-length;content-type;host;x-amz-content-sha256;x-amz-date, \
                 Signature=d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b"
            )
        );
    }

    /// The example of AWS for an object with a name that needs no encoding, except for its `$`.
    #[test]
    fn an_object_is_signed_with_the_hash_of_its_body_and_its_path_as_it_is() {
        let credentials =
            Credentials::new("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", None, None, "test");
        let fields = [
            ("host", "examplebucket.s3.amazonaws.com"),
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ];
        let request = UnsignedRequest {
            method: "PUT",
            uri: "https://examplebucket.s3.amazonaws.com/test%24file.text",
            fields: &fields,
            body: b"Welcome to Amazon S3.",
            region: "us-east-1",
            service: S3,
            time: Timestamp(1_369_353_600_000_000),
        };
        let signed = request.signature(&credentials).unwrap();
        let value = |name: &str| signed.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).unwrap().1.clone();
        let hash = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        assert_eq!(value("x-amz-content-sha256"), hash);
        let authorization = value("authorization");
        let signature = "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd";
        assert!(authorization.ends_with(signature), "{authorization}");
    }
}
