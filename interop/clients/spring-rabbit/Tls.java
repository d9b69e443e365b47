import java.io.ByteArrayInputStream;
import java.nio.file.*;
import java.security.*;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import javax.net.ssl.*;

/** The certificates of CA_FILE, CERT_FILE and KEY_FILE for Java's TLS. */
class Tls {
  static SSLContext context() throws Exception {
    var store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null);
    store.setCertificateEntry("ca", certificates("CA_FILE")[0]);
    if (System.getenv("CERT_FILE") != null) {
      var pem = Files.readString(Path.of(System.getenv("KEY_FILE"))).split("-----");
      var key = new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(pem[2]));
      var client = KeyFactory.getInstance("RSA").generatePrivate(key);
      store.setKeyEntry("client", client, new char[0], certificates("CERT_FILE"));
    }
    var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(store);
    var keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    keys.init(store, new char[0]);
    var context = SSLContext.getInstance("TLS");
    context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
    return context;
  }

  private static Certificate[] certificates(String variable) throws Exception {
    var text = Files.readString(Path.of(System.getenv(variable)));
    var pem = text.substring(text.indexOf("-----BEGIN CERTIFICATE")).getBytes();
    var found = CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(pem));
    return found.toArray(Certificate[]::new);
  }
}
