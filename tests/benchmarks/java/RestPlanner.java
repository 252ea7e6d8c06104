import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.StaticTableOperations;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.rest.RESTCatalog;

/**
 * Plans a table with Iceberg's Java library in a process of its own, which is a client of a planning service or plans by
 * itself: RestPlanner (rest URI | local) table repeats expression...
 *
 * <p>Prints a line for each plan: the place of the expression, seconds, seconds of this process' CPU, files, deletes.
 * Plans of more than a million files run once.
 */
public class RestPlanner {
  private static final long MOST_REPEATED = 1_000_000;

  private RestPlanner() {}

  public static void main(String[] arguments) throws Exception {
    int next = 0;
    boolean rest = arguments[next++].equals("rest");
    Table table = rest ? remote(arguments[next++], arguments[next]) : local(arguments[next]);
    int repeats = Integer.parseInt(arguments[++next]);
    int first = ++next;
    long[] files = new long[arguments.length];
    for (int round = 0; round < repeats; round++) {
      for (int place = first; place < arguments.length; place++) {
        if (files[place] <= MOST_REPEATED) {
          Expression filter = ExpressionParser.fromJson(arguments[place]);
          files[place] = plan(rest ? table : local(arguments[1]), place - first, filter);
        }
      }
    }
  }

  private static Table remote(String uri, String name) {
    RESTCatalog catalog = new RESTCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize(
        "served", Map.of(CatalogProperties.URI, uri, CatalogProperties.FILE_IO_IMPL, HadoopFileIO.class.getName()));
    return catalog.loadTable(TableIdentifier.parse(name));
  }

  private static Table local(String location) {
    return new BaseTable(new StaticTableOperations(location, new HadoopFileIO(new Configuration())), location);
  }

  private static long plan(Table table, int place, Expression filter) throws Exception {
    OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    long started = System.nanoTime();
    long cpu = system.getProcessCpuTime();
    long files = 0;
    long deletes = 0;
    try (CloseableIterable<FileScanTask> tasks = table.newScan().filter(filter).planFiles()) {
      for (FileScanTask task : tasks) {
        files += 1;
        for (DeleteFile delete : task.deletes()) {
          deletes += delete.recordCount() > 0 ? 1 : 0;
        }
      }
    }
    double seconds = (System.nanoTime() - started) / 1e9;
    double used = (system.getProcessCpuTime() - cpu) / 1e9;
    System.out.printf("%d %.4f %.4f %d %d%n", place, seconds, used, files, deletes);
    return files;
  }
}
