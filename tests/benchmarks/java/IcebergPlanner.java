import java.io.IOException;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ScanTask;
import org.apache.iceberg.SparkDistributedDataScan;
import org.apache.iceberg.StaticTableOperations;
import org.apache.iceberg.Table;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.spark.SparkReadConf;
import org.apache.spark.sql.SparkSession;

/**
 * Plans a table with Iceberg's own scans and looks at every planned task, all of it inside the JVM.
 *
 * <p>A planner that is made with the manifest cache keeps the bytes of the manifests from one plan to the next.
 */
public final class IcebergPlanner {
  private static final Map<String, String> MANIFEST_CACHE =
      Map.of(
          "io.manifest.cache-enabled", "true",
          "io.manifest.cache.expiration-interval-ms", "0",
          "io.manifest.cache.max-total-bytes", Long.toString(2L << 30),
          "io.manifest.cache.max-content-length", Long.toString(64L << 20));

  private final Table table;

  public IcebergPlanner(String metadataLocation, boolean cacheManifests) {
    HadoopFileIO io = new HadoopFileIO(new Configuration());
    io.initialize(cacheManifests ? MANIFEST_CACHE : Map.of());
    this.table = new BaseTable(new StaticTableOperations(metadataLocation, io), metadataLocation);
  }

  /** The files are opened by a FileIO class with properties, and the session's configuration of Hadoop. */
  public IcebergPlanner(String metadataLocation, String ioImpl, Map<String, String> properties, Configuration conf) {
    FileIO io = CatalogUtil.loadFileIO(ioImpl, properties, conf);
    this.table = new BaseTable(new StaticTableOperations(metadataLocation, io), metadataLocation);
  }

  public void dropCache() {
    ManifestFiles.dropCache(table.io());
  }

  /** Tasks, deletes of all tasks, records of all data files, records of all tasks' deletes. */
  public long[] planLocally(String expression) throws IOException {
    return consume(table.newScan().filter(filter(expression)).planFiles());
  }

  /** The same by Iceberg's distributed planning; the session sets its planning modes. */
  public long[] planDistributed(SparkSession spark, String expression) throws IOException {
    SparkDistributedDataScan scan = new SparkDistributedDataScan(spark, table, new SparkReadConf(spark, table));
    return consume(scan.filter(filter(expression)).planFiles());
  }

  private static Expression filter(String expression) {
    return ExpressionParser.fromJson(expression);
  }

  private static long[] consume(CloseableIterable<? extends ScanTask> tasks) throws IOException {
    long[] totals = new long[4];
    long seen = 0;
    try (CloseableIterable<? extends ScanTask> closing = tasks) {
      for (ScanTask task : closing) {
        seen += look(task.asFileScanTask(), totals);
      }
    }
    if (seen == 0 && totals[0] > 0) {
      throw new IllegalStateException("A plan of " + totals[0] + " tasks has no field that is set");
    }
    return totals;
  }

  private static long look(FileScanTask task, long[] totals) {
    totals[0] += 1;
    totals[2] += task.file().recordCount();
    for (DeleteFile delete : task.deletes()) {
      totals[1] += 1;
      totals[3] += delete.recordCount();
    }
    return task.file().location().length()
        + task.file().fileSizeInBytes()
        + task.file().dataSequenceNumber()
        + task.file().format().ordinal()
        + task.file().partition().get(0, Integer.class)
        + task.residual().op().ordinal();
  }
}
