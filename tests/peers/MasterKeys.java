import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.iceberg.encryption.Ciphers;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.apache.iceberg.util.ByteBuffers;

/** The key client of tests/master_keys.py: master keys are their ids, filled up to 16 bytes. */
public class MasterKeys implements KeyManagementClient {
  private static byte[] masterKey(String id) {
    return (id + "0123456789012345").substring(0, 16).getBytes(StandardCharsets.UTF_8);
  }

  @Override
  public void initialize(Map<String, String> properties) {}

  @Override
  public ByteBuffer wrapKey(ByteBuffer key, String wrappingKeyId) {
    Ciphers.AesGcmEncryptor cipher = new Ciphers.AesGcmEncryptor(masterKey(wrappingKeyId));
    return ByteBuffer.wrap(cipher.encrypt(ByteBuffers.toByteArray(key), null));
  }

  @Override
  public ByteBuffer unwrapKey(ByteBuffer wrappedKey, String wrappingKeyId) {
    Ciphers.AesGcmDecryptor cipher = new Ciphers.AesGcmDecryptor(masterKey(wrappingKeyId));
    return ByteBuffer.wrap(cipher.decrypt(ByteBuffers.toByteArray(wrappedKey), null));
  }
}
