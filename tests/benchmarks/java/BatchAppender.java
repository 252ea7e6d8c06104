import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.hadoop.HadoopCatalog;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.rest.RESTCatalog;

/**
 * Appends batches of ten rows to the table db.t, each by a commit: BatchAppender (hadoop | rest) place seconds threads.
 *
 * <p>Prints a line when it is ready, begins when it reads one, and prints the batches that it has committed, those that
 * lost all attempts, the longest time of a batch in seconds, and the seconds of CPU.
 */
public class BatchAppender {
  private static final int ROWS = 10;

  private BatchAppender() {}

  public static void main(String[] arguments) throws Exception {
    Catalog catalog = catalog(arguments[0], arguments[1]);
    double seconds = Double.parseDouble(arguments[2]);
    int threads = Integer.parseInt(arguments[3]);
    append(catalog.loadTable(TableIdentifier.of("db", "t")));
    System.out.println("ready");
    new BufferedReader(new InputStreamReader(System.in)).readLine();
    long start = System.nanoTime();
    long cpu = cpu();
    AtomicLong done = new AtomicLong();
    AtomicLong lost = new AtomicLong();
    AtomicLong longest = new AtomicLong();
    List<Thread> started = new ArrayList<>();
    for (int thread = 0; thread < threads; thread++) {
      Table table = catalog.loadTable(TableIdentifier.of("db", "t"));
      started.add(
          new Thread(
              () -> {
                while (System.nanoTime() - start < seconds * 1e9) {
                  long begin = System.nanoTime();
                  try {
                    append(table);
                    done.incrementAndGet();
                  } catch (CommitFailedException error) {
                    lost.incrementAndGet();
                  }
                  longest.accumulateAndGet(System.nanoTime() - begin, Math::max);
                }
              }));
      started.get(thread).start();
    }
    for (Thread thread : started) {
      thread.join();
    }
    System.out.printf("%d %d %.3f %.3f%n", done.get(), lost.get(), longest.get() / 1e9, (cpu() - cpu) / 1e9);
  }

  private static long cpu() {
    return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
  }

  private static Catalog catalog(String kind, String place) {
    if (kind.equals("hadoop")) {
      return new HadoopCatalog(new Configuration(), place);
    }
    RESTCatalog catalog = new RESTCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize("c", Map.of("uri", place, "io-impl", HadoopFileIO.class.getName()));
    return catalog;
  }

  private static void append(Table table) {
    GenericFileWriterFactory factory =
        new GenericFileWriterFactory.Builder(table).dataFileFormat(FileFormat.PARQUET).dataSchema(table.schema()).build();
    String location = table.locationProvider().newDataLocation(UUID.randomUUID() + ".parquet");
    DataWriter<Record> writer =
        factory.newDataWriter(
            EncryptedFiles.plainAsEncryptedOutput(table.io().newOutputFile(location)), table.spec(), null);
    try (writer) {
      for (long row = 0; row < ROWS; row++) {
        Record record = GenericRecord.create(table.schema());
        record.setField("id", row);
        record.setField("name", "n" + row);
        record.setField("v", row / 2.0);
        writer.write(record);
      }
    } catch (java.io.IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
    DataFile file = writer.toDataFile();
    table.newAppend().appendFile(file).commit();
  }
}
